#!/usr/bin/python3
"""Checks the rooms of ftd-core, ft-agent, ftd and ft-ship: no two of their files import each other in a circle, and no function is longer than a
screen. That a planted circle and a planted long function are found is tried out whenever this runs.

What a file imports is where the thing that it names is defined: a name that a module only passes on (`pub use`) is looked up there.
A module's `mod` lines are no imports, nor is what its tests use.

    scripts/rooms.py [--imports]      with --imports: also prints who imports whom
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES = ["ftd-core/src", "ftd/agent/src", "ftd/daemon/src", "ftd-client/ship/src"]
SCREEN = 60

# A comment, a string or a character; a lifetime is none of them.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\n]*?|[^\'\\\n])\'', re.S)
ITEM = re.compile(r"\b(?:fn|struct|enum|trait|impl|const|static|type|macro_rules!)\s", re.M)
FUNCTION = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:default )?(?:const )?(?:async )?(?:unsafe )?fn (\w+)", re.M)


def code(text):
    """The text with its comments, strings and characters blanked, lines kept."""
    return NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def end_of_block(text, at):
    """Behind the block that opens first from there on; where a `;` comes before it, behind that."""
    depth = 0
    for found in re.compile(r"[{};]").finditer(text, at):
        if found[0] == ";" and depth == 0:
            return found.end()
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if found[0] == "}" and depth == 0:
            return found.end()
    return len(text)


def without_tests(text):
    """The code that is not for tests alone."""
    while found := re.search(r"#\[cfg\(test\)\]", text):
        end = end_of_block(text, found.end())
        text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start() : end]) + text[end:]
    return text


def module_of(path):
    """The path of the module that is this file: () for the crate's own."""
    parts = path.removesuffix(".rs").split("/")
    return tuple(parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts)


def expanded(tree):
    """The paths of a `use` tree, braces resolved: lists of names."""
    tree = tree.strip()
    before, brace, inner = tree.partition("{")
    if not brace:
        return [re.sub(r"\s+as\s+\w+$", "", tree).replace(" ", "").split("::")]
    inner, depth, last, parts = inner.rsplit("}", 1)[0], 0, 0, []
    for at, letter in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inner[last:at])
            last = at + 1
    prefix = [name for name in before.replace(" ", "").split("::") if name]
    return [prefix + names for part in [*parts, inner[last:]] if part.strip() for names in expanded(part)]


class Crate:
    """The files of one crate."""

    def __init__(self, files):
        self.code = {module_of(path): without_tests(code(text)) for path, text in files.items()}
        self.path = {module_of(path): path for path in files}
        self.passed_on = {module: self.re_exports(module) for module in self.code}

    def uses(self, module, public):
        """The `use` declarations of a module's file: paths."""
        for visible, tree in re.findall(r"^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", self.code[module], re.M):
            if bool(visible) == public:
                yield from expanded(re.sub(r"\s+", " ", tree))

    def re_exports(self, module):
        """Name to the path that a `pub use` of this module has for it."""
        return {names[-1]: names for names in self.uses(module, True) if names[-1] != "*"}

    def start(self, module, names):
        """The module from which a path goes on, and the rest of it; None for another crate's."""
        names = list(names)
        if names[0] == "crate":
            return (), names[1:]
        if names[0] == "self":
            return module, names[1:]
        if names[0] == "super":
            while names and names[0] == "super":
                module, names = module[:-1], names[1:]
            return module, names
        return (module, names) if module + (names[0],) in self.code else None

    def defined_in(self, module, names, seen=()):
        """The module that defines what the path names; None when it is another crate's."""
        begun = self.start(module, names)
        if begun is None:
            return None
        at, rest = begun
        while rest and at + (rest[0],) in self.code:
            at, rest = at + (rest[0],), rest[1:]
        passed_on = self.passed_on[at].get(rest[0]) if rest else None
        if passed_on and (at, rest[0]) not in seen:
            return self.defined_in(at, passed_on + rest[1:], (*seen, (at, rest[0])))
        return at

    def imports(self, module):
        """The modules on whose files this one's depends."""
        text = self.code[module]
        paths = list(self.uses(module, False))
        # Whoever only passes on depends on nobody.
        if ITEM.search(text):
            paths += list(self.uses(module, True))
        body = re.sub(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+[^;]+;", "", text, flags=re.M)
        known = "|".join(sorted({name for module in self.code for name in module[-1:]})) or "crate"
        paths += [found.split("::") for found in re.findall(r"\b(?:(?:crate|self|super)(?:::\w+)+)", body)]
        paths += [found.split("::") for found in re.findall(rf"(?<![:\w.])(?:{known})(?:::\w+)+", body)]
        # `use crate::plan;` and then `plan::plan(…)`: the first is there already.
        return {self.defined_in(module, names) for names in paths} - {None, module}

    def graph(self):
        return {module: self.imports(module) for module in self.code}


def circles(graph):
    """The sets of modules of which each depends on all others of the set (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(members)

    for node in graph:
        if node not in index:
            visit(node)
    return found


def long_functions(text):
    """Name, line and length of the functions that do not fit onto a screen."""
    text = code(text)
    for found in FUNCTION.finditer(text):
        end = end_of_block(text, found.end())
        length = text.count("\n", found.start(), end) + 1
        if length > SCREEN:
            yield found[1], text.count("\n", 0, found.start()) + 1, length


def complaints(files, where):
    """What is wrong with a crate's files: sentences."""
    crate = Crate(files)
    graph = crate.graph()
    for members in circles(graph):
        edges = [(a, b) for a in members for b in graph[a] if b in members]
        names = ", ".join(f"{crate.path[a]} → {crate.path[b]}" for a, b in sorted(edges))
        yield f"{where}: {len(members)} files import each other in a circle: {names}"
    for path, text in files.items():
        for name, line, length in long_functions(text):
            yield f"{where}/{path}:{line}: {name} has {length} lines, and a screen {SCREEN}"


def self_test():
    """A circle and a long function are found, and nothing is where there is nothing."""
    clean = {
        "lib.rs": "mod a;\nmod b;\npub use a::A;\n",
        "a.rs": '/// See [`crate::b`].\npub struct A(char);\nfn f() -> A { A(\'"\') }\n',
        "b.rs": "use crate::A;\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n",
    }
    body = lambda lines: "fn f() {\n" + "    g();\n" * (lines - 2) + "}\n"
    cases = [
        (clean, 0),
        (clean | {"a.rs": "use crate::b::B;\npub struct A(B);\n"}, 1),
        (clean | {"a.rs": "pub struct A(crate::b::B);\n"}, 1),
        (clean | {"lib.rs": "mod a;\nmod b;\nuse b::g;\nfn f() { g() }\n", "b.rs": "use super::*;\nstruct B;\n"}, 1),
        (clean | {"lib.rs": "mod a;\nmod b;\nfn f() { b::g() }\n", "b.rs": "use crate::{a::A, f};\nstruct B;\n"}, 1),
        (clean | {"b.rs": body(SCREEN)}, 0),
        (clean | {"b.rs": body(SCREEN + 1)}, 1),
    ]
    for number, (files, expected) in enumerate(cases):
        found = list(complaints(files, "test"))
        if len(found) != expected:
            sys.exit(f"rooms.py does not find what it looks for: case {number}, {found}")


def main():
    self_test()
    failed = False
    for where in CRATES:
        base = ROOT / where
        files = {str(path.relative_to(base)): path.read_text() for path in sorted(base.rglob("*.rs"))}
        if "--imports" in sys.argv:
            crate = Crate(files)
            for module, others in crate.graph().items():
                print(f"{where}/{crate.path[module]}: {', '.join(sorted(crate.path[other] for other in others))}")
        for sentence in complaints(files, where):
            print(sentence)
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
