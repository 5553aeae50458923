"""What is installed."""

from collections import defaultdict
from importlib.metadata import distributions

EITHER_WILL_DO = {"cel/__init__.py", "envoy/__init__.py"}
"""We import what is below these, which needs neither version of them."""


def test_no_dependency_overwrites_a_file_of_another() -> None:
    """Which one stays is a matter of the order of installation, which differs from pip to pip."""
    owners: dict[str, set[str]] = defaultdict(set)
    for distribution in distributions():
        for file in distribution.files or ():
            if file.suffix in (".py", ".pyi", ".so") and ".." not in file.parts:
                owners[str(file)].add(distribution.metadata["Name"])
    shared = {name: sorted(of) for name, of in owners.items() if len(of) > 1 and name not in EITHER_WILL_DO}
    assert len(owners) > 1000
    assert not shared
