#!/usr/bin/env python3
"""Draws rows of the tables of threats in docs/run-a-grid/security.md, and prints each sentence beside its tests.

    tests/long/draw_rows.py [--seed N] [--rows 20]

Whoever runs it reads the test beside the sentence: does it show what is written, and could it fail?
"""

import argparse
import random
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`([a-z0-9_]+)::([a-z0-9_]+)`")


def rows(page: str) -> list[tuple[str, str]]:
    """The heading and the line of each row that names a test."""
    heading, found = "", []
    for line in page.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("|") and TEST.search(line):
            found.append((heading, line))
    return found


def sources() -> dict[str, list[tuple[Path, str]]]:
    """The functions of the tree by name, each with its file and text."""
    functions: dict[str, list[tuple[Path, str]]] = {}
    for path in sorted(ROOT.rglob("*.rs")):
        if "target" in path.relative_to(ROOT).parts:
            continue
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            match = re.match(r"(\s*)(?:pub )?(?:async )?fn ([a-z0-9_]+)", line)
            if not match:
                continue
            end = at
            while end < len(lines) and lines[end] != match[1] + "}":
                end += 1
            first = at
            while first > 0 and lines[first - 1].strip().startswith(("#[", "///")):
                first -= 1
            text = "\n".join(lines[first : end + 1])
            functions.setdefault(match[2], []).append((path, text))
    return functions


def is_of(module: str, path: Path) -> bool:
    """Whether a file is the module, or has it inside."""
    return module == "tests" or module in (path.stem, path.parent.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=20)
    wanted = parser.parse_args()
    all_rows = rows((ROOT / "docs/run-a-grid/security.md").read_text())
    functions = sources()
    count = min(wanted.rows, len(all_rows))
    drawn = random.Random(wanted.seed).sample(all_rows, count)
    print(f"{count} of {len(all_rows)} rows, seed {wanted.seed}")
    for number, (heading, line) in enumerate(drawn, 1):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        print(f"\n{'=' * 100}\n{number}. {heading}\n")
        for cell in cells[:-1]:
            print(f"  {cell}")
        for module, name in TEST.findall(line):
            print(f"\n--- {module}::{name}")
            tests = [one for one in functions.get(name, []) if is_of(module, one[0])]
            for path, text in tests:
                print(f"    {path.relative_to(ROOT)}\n{text}")
            if not tests:
                print("    NOT FOUND")


if __name__ == "__main__":
    main()
