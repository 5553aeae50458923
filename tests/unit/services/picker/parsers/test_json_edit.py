"""Another model in a body, and nothing else touched."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.parsers.json_edit import replace_model


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"b"}'),
        (b' { "x" : 1e2 , "model"\n:\t"a" , "y":[ ] } ', b' { "x" : 1e2 , "model"\n:\t"b" , "y":[ ] } '),
        (
            b'{"messages":[{"model":"a"}],"model":"a","x":{"model":"a"}}',
            b'{"messages":[{"model":"a"}],"model":"b","x":{"model":"a"}}',
        ),
        (b'{"model":"first","model":"last"}', b'{"model":"first","model":"b"}'),
        (rb'{"mod\u0065l":"a\"}\\"}', rb'{"mod\u0065l":"b"}'),
        (b'{"prompt":"\\"model\\":\\"a\\"","model":"a"}', b'{"prompt":"\\"model\\":\\"a\\"","model":"b"}'),
        (
            b'{"seed":9007199254740993,"z":1.10,"model":"a","a":"<&>"}',
            b'{"seed":9007199254740993,"z":1.10,"model":"b","a":"<&>"}',
        ),
        (b'{"model":null}', b'{"model":"b"}'),
        (b'{"model":{"model":"a"}}', b'{"model":"b"}'),
        (b'{"x":"\xff\xfe","model":"a"}', b'{"x":"\xff\xfe","model":"b"}'),
    ],
)
def test_only_the_value_of_the_last_top_level_model_changes(body: bytes, expected: bytes) -> None:
    assert b"".join(replace_model(body, "b")) == expected


@pytest.mark.parametrize("model", ['quo"te', "back\\slash", "größe/λ", "tab\t", ""])
def test_a_name_is_written_as_json(model: str) -> None:
    assert json.loads(b"".join(replace_model(b'{"model":"a","x":1}', model))) == {"model": model, "x": 1}


def test_a_body_that_has_the_name_already_is_the_same_object() -> None:
    body = b'{"model":"b","x":1}'
    assert replace_model(body, "b") == (body,)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"model":"b"}'),
        (b" \n{ \t} ", b' \n{"model":"b" \t} '),
        (b'{"x":{"model":"a"}}', b'{"model":"b","x":{"model":"a"}}'),
        (b'\r\n{ "x":"}" }', b'\r\n{"model":"b", "x":"}" }'),
    ],
)
def test_a_body_without_a_model_gets_one_as_its_first_key(body: bytes, expected: bytes) -> None:
    assert b"".join(replace_model(body, "b")) == expected


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"model":"a"', b'{"x":}', b"\xff"])
def test_a_body_that_is_no_object_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="no model to replace by 'b'"):
        replace_model(body, "b")


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=6), st.just("model")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.just("model"), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=10,
)


@given(
    fields=st.dictionaries(st.text(max_size=4), VALUES, max_size=4),
    old=VALUES,
    model=st.text(max_size=8),
    position=st.none() | st.integers(0, 4),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_any_object_reads_the_same_but_for_its_model(
    fields: dict[str, Any], old: Any, model: str, position: int | None, ascii_only: bool, indent: int | None
) -> None:
    fields.pop("model", None)
    items = list(fields.items())
    if position is None:
        body = json.dumps(dict(items), ensure_ascii=ascii_only, indent=indent).encode()
        assert list(json.loads(b"".join(replace_model(body, model))).items()) == [("model", model), *items]
        return
    items.insert(position, ("model", old))
    body = json.dumps(dict(items), ensure_ascii=ascii_only, indent=indent).encode()
    spliced = b"".join(replace_model(body, model))
    assert json.loads(spliced) == {**dict(items), "model": model}
    assert list(json.loads(spliced)) == [name for name, _ in items]
