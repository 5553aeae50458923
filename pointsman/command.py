"""What commands that aren't services share: how they read their options, fail, and print results."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from shared.config.problems import Invalid, Problem
from shared.service.settings import parse, report

Format: TypeAlias = Annotated[Literal["text", "json"], Meta(description="text for people or JSON for programs")]
LOCAL = "httpx"
"""What only `pointsman[local]` installs."""
USAGE_ERROR = 2
"""Exit code for wrong options."""
STDIN = "-"
S = TypeVar("S", bound=Struct)


def parse_options(kind: type[S], argv: Sequence[str], command: str, environ: Mapping[str, str] | None = None) -> S:
    """The command's options. Raises SystemExit: 2 after printing every wrong option, 0 after `--help`."""
    with usage_errors():
        return parse(kind, argv, environ, f"pointsman {command}")


@contextmanager
def usage_errors() -> Iterator[None]:
    """In the block, Invalid options end the command: what is wrong is printed, and SystemExit is raised."""
    try:
        yield
    except Invalid as error:
        report(error)
        raise SystemExit(USAGE_ERROR) from error


def read_input(path: str, option: str, limit: int) -> bytes:
    """What is in the file that an option names, `-` for standard input. Raises Invalid, also above `limit` bytes."""
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(limit + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(limit + 1)
    except OSError as error:
        raise Invalid([Problem(option, f"{path!r} can't be read: {error.strerror or error}")]) from error
    if len(content) > limit:
        raise Invalid([Problem(option, f"{path!r} has more than {limit} bytes")])
    return content


def refuse(error: ValueError) -> NoReturn:
    """Print which options don't fit together, and exit."""
    print(error, file=sys.stderr)
    raise SystemExit(USAGE_ERROR) from error


def run_local(command: str, run: Callable[[], int]) -> int:
    """The exit code of a command that only `pointsman[local]` installs completely."""
    try:
        return run()
    except Invalid as error:
        return report(error)
    except ModuleNotFoundError as error:
        if error.name != LOCAL:
            raise
        print(f"pointsman {command}: {LOCAL} is missing; `pip install 'pointsman[local]'` installs it", file=sys.stderr)
        return 1
    except BrokenPipeError:  # nobody reads the output; Python would print to it once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def print_json(document: Any) -> None:
    """Print JSON. Control characters that JSON allows and a terminal would obey are escaped. Raises SystemExit for what
    is nested too deeply."""
    try:
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    except RecursionError:
        raise SystemExit("what was found is nested too deeply to be printed as JSON") from None
    print("\n".join(line if line.isprintable() else "".join(map(_escaped, line)) for line in text.split("\n")))


def _escaped(char: str) -> str:
    return char if char.isprintable() else json.dumps(char)[1:-1]
