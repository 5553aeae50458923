"""`disagg-profile-handler`: picks endpoints for decode and, where deciders say so, for prefill and encode.

The decode endpoint is the request's destination; headers name the others. A stage for which no endpoint is left, or
none that seems to be up, is skipped: decode servers can do everything themselves.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Decider, ProfileHandler
from services.picker.scheduling.record import Plan, ProfileRun
from services.picker.scheduling.stages import decision_type, host_headers, rank_failed_last, roles
from shared.plugin import Reference, Role


class StageProfiles(Struct, frozen=True, rename="camel"):
    """The profiles of the stages."""

    decode: str = "decode"
    prefill: str = "prefill"
    encode: str = "encode"


class StageDeciders(Struct, frozen=True, rename="camel"):
    """The plugins that say whether a stage is used; a stage without one isn't."""

    prefill: str = ""
    encode: str = ""


class DisaggParameters(Struct, frozen=True, rename="camel"):
    """Profiles and deciders, also as older generations wrote them."""

    profiles: StageProfiles | None = None
    deciders: StageDeciders | None = None
    stage_order: Literal["decode-first", "prefill-first"] = "decode-first"
    """Which pick knows of the other."""
    decode_profile: str = ""
    prefill_profile: str = ""
    encode_profile: str = ""
    decider_plugin_name: str = ""
    prefill_decider_plugin_name: str = ""
    encode_decider_plugin_name: str = ""

    def __post_init__(self) -> None:
        former = [name for name, value in self._former().items() if value]
        if former and (self.profiles is not None or self.deciders is not None):
            raise ValueError(f"{former[0]}: a former parameter beside profiles and deciders; write only these")
        if self.decider_plugin_name and self.prefill_decider_plugin_name:
            raise ValueError("deciderPluginName: the same as prefillDeciderPluginName; write one of them")
        if self.stage_order == "prefill-first" and self.stage_deciders.prefill:
            raise ValueError("stageOrder: with prefill-first, every request is prefilled; leave out the decider")

    @property
    def stage_profiles(self) -> StageProfiles:
        """By any spelling."""
        known = StageProfiles()
        return self.profiles or StageProfiles(
            self.decode_profile or known.decode,
            self.prefill_profile or known.prefill,
            self.encode_profile or known.encode,
        )

    @property
    def stage_deciders(self) -> StageDeciders:
        """By any spelling."""
        prefill = self.prefill_decider_plugin_name or self.decider_plugin_name
        return self.deciders or StageDeciders(prefill, self.encode_decider_plugin_name)

    def _former(self) -> dict[str, str]:
        return {
            "decodeProfile": self.decode_profile,
            "prefillProfile": self.prefill_profile,
            "encodeProfile": self.encode_profile,
            "deciderPluginName": self.decider_plugin_name,
            "prefillDeciderPluginName": self.prefill_decider_plugin_name,
            "encodeDeciderPluginName": self.encode_decider_plugin_name,
        }


class StagesHandler(ProfileHandler):
    """Decode, and what deciders add to it. A subclass says which profiles and deciders."""

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._profiles, self._deciders = self.stages(self.parameters)

    @classmethod
    def stages(cls, parameters: Any) -> tuple[StageProfiles, StageDeciders]:
        """The profiles and the deciders."""
        raise NotImplementedError

    @classmethod
    def references(cls, parameters: Any) -> tuple[Reference, ...]:
        _, deciders = cls.stages(parameters)
        return tuple(
            Reference(f"deciders.{stage}", name, Role.DECIDER)
            for stage, name in (("prefill", deciders.prefill), ("encode", deciders.encode))
            if name
        )

    @classmethod
    def check_profiles(cls, parameters: Any, names: tuple[str, ...]) -> list[str]:
        profiles, deciders = cls.stages(parameters)
        needed = {"decode": profiles.decode}
        if deciders.prefill:
            needed["prefill"] = profiles.prefill
        if deciders.encode:
            needed["encode"] = profiles.encode
        return [f"there is no {stage} profile {name!r}" for stage, name in needed.items() if name not in names]

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        if not results:
            return (self._profiles.decode,)
        decode = results[self._profiles.decode].picked
        if len(results) > 1 or not decode:
            return ()
        rank_failed_last(cycle, decode[0])
        stages = ((self._profiles.encode, self._deciders.encode), (self._profiles.prefill, self._deciders.prefill))
        return tuple(profile for profile, decider in stages if decider and self._wants(decider, cycle, decode[0]))

    def plan(self, cycle: Cycle, results: dict[str, ProfileRun]) -> Plan:
        names = self._profiles
        if not results[names.decode].picked:
            return Plan(names.decode)
        stages, skipped = roles(cycle, results, names.decode, names.prefill, names.encode)
        headers = host_headers(cycle, results, stages)
        return Plan(names.decode, stages, headers, decision_type(stages), skipped=skipped)

    def _wants(self, decider: str, cycle: Cycle, row: int | None) -> bool:
        """Whether the stage is used. One whose decider fails isn't."""
        plugin = self.referenced[decider]
        try:
            return isinstance(plugin, Decider) and bool(plugin.disaggregate(cycle, row))
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            cycle.plugin_failed(plugin, Role.DECIDER, error)
            return False


class DisaggProfileHandler(StagesHandler):
    """Decode first, then encode and prefill near it; or prefill first, then decode near that."""

    TYPE = "disagg-profile-handler"
    Parameters = DisaggParameters
    parameters: DisaggParameters

    @classmethod
    def stages(cls, parameters: DisaggParameters) -> tuple[StageProfiles, StageDeciders]:
        return parameters.stage_profiles, parameters.stage_deciders

    @classmethod
    def check_profiles(cls, parameters: DisaggParameters, names: tuple[str, ...]) -> list[str]:
        missing = super().check_profiles(parameters, names)
        prefill = parameters.stage_profiles.prefill
        if parameters.stage_order == "prefill-first" and prefill not in names:
            missing.append(f"there is no prefill profile {prefill!r}")
        return missing

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        if self.parameters.stage_order == "decode-first":
            return super().next_profiles(cycle, names, results)
        if results:
            return ()
        rank_failed_last(cycle, None)
        encode = self._deciders.encode
        stages: Mapping[str, bool] = {
            self._profiles.prefill: True,
            self._profiles.encode: bool(encode) and self._wants(encode, cycle, None),
            self._profiles.decode: True,
        }
        return tuple(profile for profile, used in stages.items() if used)
