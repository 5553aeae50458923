"""Documents are read beside the event loop, in other processes."""

import asyncio

import pytest

from services.console.checking import CheckFailed, CheckResult, check_document
from services.console.configuration import MAX_CHECKS, Documents, TooManyChecks
from shared.config.schema import Bounds
from shared.model import Configuration


class Nobody:
    """No members."""

    async def answered(self) -> list[object]:
        return []


GOOD = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
dataLayer:
  staleMetrics: {after: 7s}
"""


async def test_a_document_is_read_in_a_process_of_its_own() -> None:
    good, bad, built_in = await asyncio.gather(
        check_document(GOOD, Bounds()), check_document("kind: [Nonsense", Bounds()), check_document("", Bounds())
    )
    assert (good.errors, good.stale_after, len(good.revision)) == ([], 7.0, len(bad.revision))
    assert "not valid YAML" in bad.errors[0]
    assert (built_in.errors, built_in.plugins > 3) == ([], True)
    assert "values, keys included" in (await check_document(GOOD, Bounds(values=5))).errors[0]


async def test_few_documents_wait_for_their_check() -> None:
    """Also those whose clients have gone."""
    released = asyncio.Event()

    async def one(text: str, _: Bounds) -> CheckResult:
        await released.wait()
        return CheckResult(text)

    documents = Documents(Bounds(), 10, one)
    waiting = [asyncio.create_task(documents.check(f"{number}")) for number in range(MAX_CHECKS)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyChecks, match="4 documents are being checked"):
        await documents.check("more")
    released.set()
    assert (await documents.run(None)).revision == ""
    assert [page["revision"] for page in await asyncio.gather(*waiting)] == [
        f"{number}" for number in range(MAX_CHECKS)
    ]
    assert (await documents.check("more"))["revision"] == "more"


async def test_the_document_before_the_last_change_is_kept() -> None:
    async def one(text: str, _: Bounds) -> CheckResult:
        if text == "unread":
            raise CheckFailed("no memory")
        return CheckResult(f"revision of {text}")

    documents = Documents(Bounds(), 10, one, clock=lambda: 60.0)

    async def before(text: str | None) -> object:
        configuration = None if text is None else Configuration(text=text)
        await documents.run(configuration)
        return (await documents.page(configuration, Nobody()))["before"]  # type: ignore[arg-type]

    assert [await before(text) for text in (None, "a", "a")] == [None] * 3
    kept = {"revision": "revision of a", "until": "1970-01-01T00:01:00.000+00:00", "text": "a"}
    assert [await before(text) for text in ("b", "b", "unread")] == [kept] * 3
    assert await before("c") == {**kept, "revision": "revision of b", "text": "b"}


async def test_checks_are_one_at_a_time_and_the_running_document_is_read_once() -> None:
    reading, most, fails = 0, 0, True
    texts: list[str] = []

    async def one(text: str, _: Bounds) -> CheckResult:
        nonlocal reading, most
        texts.append(text)
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        reading -= 1
        if fails:
            raise CheckFailed("no memory")
        return CheckResult(text)

    documents, published = Documents(Bounds(), 10, one), Configuration(text="published")
    failed = await documents.run(published)
    assert failed.errors == ["the document couldn't be checked: no memory"]
    fails = False
    checks = await asyncio.gather(
        documents.check("a"), documents.check("b"), documents.run(published), documents.run(published)
    )
    assert [check["revision"] for check in checks[:2]] == ["a", "b"]
    assert (most, documents.running.revision, sorted(texts)) == (2, "published", ["a", "b", "published", "published"])
    assert (await documents.check("x" * 11))["errors"] == ["the document has 11 characters; 10 are allowed"]
    assert (await documents.run(None)).revision == ""
