"""Files of many documents: what reading them costs."""

from typing import Any

import pytest
import yaml

from services.watcher.documents import _Reader, read_documents
from services.watcher.files import FileReader
from services.watcher.positions import MAX_KEY, with_lines
from services.watcher.resources import GROUPS, PoolId
from shared.config.problems import MAX_PROBLEMS, Problem, Problems, count_problems
from shared.datalayer.objects import NODE, ObjectKind
from shared.plugin import Registry


class Counted:
    """Counts the nodes that are composed for the lines of problems."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = 0
        compose_all = yaml.compose_all

        def counting(*args: Any, **kwargs: Any) -> Any:
            for node in compose_all(*args, **kwargs):
                self.nodes += 1
                yield node

        monkeypatch.setattr(yaml, "compose_all", counting)


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """The problems that are compared with another from now on."""
    compared: list[Problem] = []

    def equal(problem: Problem, other: object) -> bool:
        compared.append(problem)
        return isinstance(other, Problem) and str(problem) == str(other)

    monkeypatch.setattr(Problem, "__eq__", equal)
    return compared


def test_each_document_is_looked_at_once_for_the_lines_of_its_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, problems = Counted(monkeypatch), Problems()
    read_documents("---\n{}\n" * 100, "f", problems)
    assert [(error.path, error.line) for error in problems.errors] == [
        (f"documents[{number}]", 2 * number + 2) for number in range(100)
    ]
    assert counted.nodes == 100


def test_documents_behind_the_last_problem_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, problems = Counted(monkeypatch), Problems()
    read_documents("---\nendpoints: []\n" * 3 + "---\n{}\n" + "---\nendpoints: []\n" * 100, "f", problems)
    assert [error.line for error in problems.errors] == [8]
    assert counted.nodes == 4


@pytest.mark.parametrize(
    "text",
    [
        "---\n{}\n" * 200,
        "endpoints:\n" + "- {}\n" * 200,
        "kind: List\nitems:\n" + "- {}\n" * 200,
        "kind: List\nitems:\n" + "- {kind: List, items: [{}]}\n" * 200,
        "apiVersion: v1\nkind: NodeList\nitems:\n" + "- {}\n" * 200,
    ],
)
def test_after_a_hundred_problems_the_rest_of_a_file_is_not_read(text: str) -> None:
    problems = Problems()
    read_documents(text, "f", problems, object_kinds=[NODE])
    assert MAX_PROBLEMS <= count_problems(problems.errors) < MAX_PROBLEMS + 5


def test_problems_of_one_object_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = count_comparisons(monkeypatch)
    fields, labels = (f"  l{number}: 1\n" for number in range(400)), (f"    l{number}: 1\n" for number in range(400))
    pool = f"apiVersion: {GROUPS[0]}/v1\nkind: InferencePool\nspec:\n{''.join(fields)}metadata:\n  name: p\n  labels:\n"
    problems = Problems()
    read_documents(pool + "".join(labels), "f", problems, object_kinds=[ObjectKind(GROUPS[0], "v1", "InferencePool")])
    assert count_problems(problems.errors) == 800
    assert len(compared) < 10


def test_duplicate_keys_of_a_file_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = count_comparisons(monkeypatch)
    configuration = "---\napiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n" + "plugins: []\n" * 301
    text = "endpoints: []\n" * 301 + configuration
    read = FileReader(PoolId("default", "default"), Registry).read("f", text.encode())
    lines = [error.line for error in read.errors if error.message == "duplicate key"]
    assert lines == [*range(2, 302), *range(306, 606)], "each once"
    assert len(compared) < 1000


OBJECTIVE = """---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {{name: {name}}}
spec: {{poolRef: {{name: default}}}}
"""


def test_endpoints_are_not_copied_for_each_document(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[object] = []

    class Watched(_Reader):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_endpoints" and value is not None:
                gathered.append(value)
            super().__setattr__(name, value)

    monkeypatch.setattr("services.watcher.documents._Reader", Watched)
    problems, entry = Problems(), "---\nendpoints: [{{name: e{}, address: 10.0.0.1, port: 80}}]\n"
    read = read_documents("".join(map(entry.format, [*range(50), 7])), "f", problems)
    assert len(read.endpoints or ()) == 50
    assert [str(error) for error in problems.errors] == [
        "documents[50].endpoints: 'default/e7' is in another document of this file too (line 102)"
    ]
    assert len(gathered) == 1, "one mapping for all documents"


def test_a_resource_that_is_given_twice_is_named_wherever_it_is() -> None:
    problems = Problems()
    names = [*(f"o{number}" for number in range(50)), "o7"]
    read_documents("".join(OBJECTIVE.format(name=name) for name in names), "f", problems)
    assert [str(error) for error in problems.errors] == [
        "documents[50].metadata.name: InferenceObjective 'o7' is given twice (line 254)"
    ]


@pytest.mark.parametrize(("length", "line"), [(MAX_KEY, 2), (MAX_KEY + 1, 1), (200_000, 1)])
def test_a_key_is_looked_for_up_to_a_length(length: int, line: int) -> None:
    key = "." * length
    [problem] = with_lines(f"a:\n  ? {key!r}\n  : 1\n", 0, [Problem(f"a.{key}", "")])
    assert problem.line == line
