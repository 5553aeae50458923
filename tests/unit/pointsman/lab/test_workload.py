from pathlib import Path

import pytest

from pointsman.lab.workload import Arrival, Groups, Trace, TraceError


def test_equal_seeds_give_equal_requests() -> None:
    groups = Groups(seconds=2.0)
    first, again, other = (list(groups.arrivals(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert [arrival.at for arrival in first] == sorted(arrival.at for arrival in first)


def test_groups_have_common_prefixes_and_the_first_ones_are_more_frequent() -> None:
    groups = Groups(rate=500.0, seconds=4.0, groups=4, skew=1.0, prefix_tokens=10, own_tokens=6, output_tokens=20)
    arrivals = list(groups.arrivals(1))
    prefixes = [arrival.prompt[:40] for arrival in arrivals]
    assert len(set(prefixes)) == 4
    assert max(map(prefixes.count, set(prefixes))) == pytest.approx(0.48 * len(arrivals), rel=0.1)
    assert {len(arrival.prompt) // 4 for arrival in arrivals} == set(range(13, 20))
    assert {arrival.output_tokens for arrival in arrivals} == set(range(10, 31))


def trace(directory: Path, *lines: str) -> Trace:
    path = directory / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Trace(path=str(path), hash_tokens=4, speed=2.0)


def test_a_trace_has_texts_or_hashes_of_blocks(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        '{"arrival": 3.0, "prompt": "once upon", "output_tokens": 5, "model": "m"}',
        "",
        '{"timestamp": 4000, "hash_ids": [7, 8], "input_length": 10, "output_length": 2}',
        '{"arrival": 5.0, "hashes": [7, 9], "tokens": 6}',
    )
    text, blocks, others = made.arrivals(1)
    assert text == Arrival(0.0, b"once upon", 5, "m")
    assert (blocks.at, len(blocks.prompt), blocks.output_tokens) == (0.5, 40, 2)
    assert (others.at, len(others.prompt), others.output_tokens) == (1.0, 24, 1)
    assert blocks.prompt[:16] == others.prompt[:16]
    assert blocks.prompt[16:32] != others.prompt[16:]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "x"}', "neither `arrival`"),
        ('{"arrival": 9.0}', "neither `prompt` nor `hashes`"),
        ('{"arrival": 1.0, "prompt": "x"}', "before the request of the line above"),
        ('{"arrival": "soon", "prompt": "x"}', "Expected"),
        ('{"arrival": 9.0, "hashes": [1], "tokens": -1}', "Expected"),
        ("{", "truncated"),
        ('{"timestamp": 1764297600000, "prompt": "x"}', "`timestamp` 1764297600000 is 8.82149e.08 s after the first"),
        ('{"arrival": 172803.0, "prompt": "x"}', "`arrival` 172803 is 86400.5 s after .* at most 86400 s"),
    ],
)
def test_a_line_that_cant_be_used_is_named(tmp_path: Path, line: str, problem: str) -> None:
    made = trace(tmp_path, '{"arrival": 2.0, "prompt": "x"}', line)
    with pytest.raises(TraceError, match=f"line 2: .*{problem}"):
        list(made.arrivals(1))


def test_a_line_without_an_end_and_a_prompt_that_fills_the_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: more than 67108864 bytes"):
        list(Trace(path="/dev/zero").arrivals(1))
    path = tmp_path / "trace"
    path.write_text(f'{{"arrival":0,"hashes":[{"1," * 20_000}1]}}')
    with pytest.raises(TraceError, match="line 1: the hashes stand for more than 10000000 tokens"):
        list(Trace(path=str(path)).arrivals(1))
