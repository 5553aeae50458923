"""Finds regular expressions that take more than linear time, by their structure.

An expression is made an automaton of its characters. Backtracking takes at least quadratic time where some text leads
from a repeated character back to itself, and to another repeated one, and from that back to itself (Weber and Seidl,
"On the degree of ambiguity of finite automata", 1991), and the whole can fail after it: each split of the text is
tried. Where an expression is searched for, the places at which it may begin count as a repeat before it.

Bounded repeats, look-behinds and what a group captured before count for nothing here; a look-ahead counts as if it read
what it looks at.
"""

import importlib
import itertools
import re
from collections.abc import Iterable
from typing import Any

_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")
_ALPHABET = [*map(chr, range(9, 14)), *map(chr, range(28, 127)), "é", "µ", "μ", "٣", "\u2003"]


class _Part:
    """An expression's part: whether it may be empty, and the characters that it may begin and end with."""

    def __init__(self, empty: bool, first: frozenset[int] = frozenset(), last: frozenset[int] = frozenset()) -> None:
        self.empty, self.first, self.last = empty, first, last


class _Automaton:
    """The characters of an expression, and which may follow which."""

    def __init__(self, pattern: re.Pattern[Any], *, searched: bool) -> None:
        source = pattern.pattern
        self._bytes = isinstance(source, bytes)
        text = source.decode("latin-1") if isinstance(source, bytes) else source
        tree = _parser.parse(text, pattern.flags & ~(re.UNICODE if self._bytes else 0))
        self._state, self._flags = tree.state, pattern.flags
        self.sets: list[int] = []
        """For each character its class, as bits of the alphabet."""
        self.follows: list[set[int]] = []
        self.doubled: set[tuple[int, int]] = set()
        """Steps that can be taken in two ways."""
        self.can_fail = False
        """Whether a place, and no character, decides at some point."""
        begins = bool(tree.data) and tree.data[0][0] is _parser.AT
        part = self._sequence(tree.data[1:] if begins else tree.data)
        self.accepting, self.empty = part.last, part.empty
        if searched and not begins:
            prefix = self._char((1 << len(_ALPHABET)) - 1)
            self._connect(prefix.last, prefix.first)
            self._connect(prefix.last, part.first)

    def _char(self, chars: int) -> _Part:
        self.sets.append(chars)
        self.follows.append(set[int]())
        one = frozenset([len(self.sets) - 1])
        return _Part(False, one, one)

    def _connect(self, last: Iterable[int], first: Iterable[int]) -> None:
        for a, b in itertools.product(last, first):
            if b in self.follows[a]:
                self.doubled.add((a, b))
            self.follows[a].add(b)

    def _sequence(self, nodes: Iterable[tuple[Any, Any]]) -> _Part:
        whole = _Part(True)
        for node in nodes:
            part = self._node(*node)
            self._connect(whole.last, part.first)
            whole = _Part(
                whole.empty and part.empty,
                whole.first | part.first if whole.empty else whole.first,
                whole.last | part.last if part.empty else part.last,
            )
        return whole

    def _node(self, kind: Any, value: Any) -> _Part:
        if kind in (_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT):
            least, most, inner = value
            part = self._sequence(inner)
            if most is _parser.MAXREPEAT:
                self._connect(part.last, part.first)
            return _Part(part.empty or least == 0, part.first, part.last)
        if kind is _parser.SUBPATTERN:
            return self._sequence(value[3])
        if kind is _parser.ATOMIC_GROUP:
            return self._sequence(value)
        if kind is _parser.BRANCH:
            parts = [self._sequence(item) for item in value[1]]
            return _Part(
                any(part.empty for part in parts),
                frozenset().union(*(part.first for part in parts)),
                frozenset().union(*(part.last for part in parts)),
            )
        if kind is _parser.ASSERT and value[0] > 0:
            self.can_fail = True
            return self._sequence(value[1])
        if kind in (_parser.AT, _parser.ASSERT, _parser.ASSERT_NOT, _parser.GROUPREF):
            self.can_fail = True
            return _Part(True)
        return self._char(self._class(kind, value))

    def _class(self, kind: Any, value: Any) -> int:
        one = _compiler.compile(_parser.SubPattern(self._state, [(kind, value)]), self._flags & ~re.DEBUG)
        return sum(1 << bit for bit, char in enumerate(_ALPHABET) if one.fullmatch(char))

    def repeats(self) -> dict[int, frozenset[int]]:
        """The characters that can come again, each with those of its loop."""
        reach: list[set[int]] = []
        for start in range(len(self.sets)):
            seen, todo = set[int](), list(self.follows[start])
            while todo:
                if (at := todo.pop()) not in seen:
                    seen.add(at)
                    todo += self.follows[at]
            reach.append(seen)
        return {
            one: frozenset(other for other in seen if one in reach[other])
            for one, seen in enumerate(reach)
            if one in seen
        }


def is_superlinear(pattern: re.Pattern[Any], *, searched: bool = True, whole: bool = False) -> bool:
    """Whether there are texts for which it takes more than linear time to fail. `searched` says that it may begin
    anywhere, `whole` that all of the text has to match."""
    automaton = _Automaton(pattern, searched=searched)
    loops = automaton.repeats()
    if any(a in loops and b in loops[a] for a, b in automaton.doubled):
        return True
    decided = not whole and not automaton.can_fail
    if decided and automaton.empty:
        return False  # it can't fail
    final = automaton.accepting if decided else frozenset[int]()
    return any(_splits(automaton, loops, p, q) for p in loops for q in loops if p != q and q not in final)


def _splits(automaton: _Automaton, loops: dict[int, frozenset[int]], p: int, q: int) -> bool:
    """Whether one text leads from p to p, from p to q and from q to q."""
    sets, follows = automaton.sets, automaton.follows
    seen, todo = set[tuple[int, int, int]](), [(p, p, q)]
    while todo:
        a, b, c = todo.pop()
        for x in follows[a] & loops[p]:
            for z in follows[c] & loops[q]:
                if common := sets[x] & sets[z]:
                    for y in follows[b]:
                        if common & sets[y] and (x, y, z) not in seen:
                            if (x, y, z) == (p, q, q):
                                return True
                            seen.add((x, y, z))
                            todo.append((x, y, z))
    return False
