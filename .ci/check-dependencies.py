#!/usr/bin/env python3
"""Licences, bans and sources of the dependency graph, by the rules of deny.toml.

A stand-in for `cargo deny check licenses bans sources` where cargo-deny is not installed (building it takes
longer than everything else that is checked). Needs Python 3.11 and cargo, no network once the crates are there.
Advisories are not looked at: they need a network.
"""

import collections
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def packages(targets):
    """Every package that is built for one of the targets."""
    found = {}
    for target in targets:
        command = ["cargo", "metadata", "--format-version=1", "--locked", "--all-features",
                   "--filter-platform", target]
        output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        graph = json.loads(output)
        used = {node["id"] for node in graph["resolve"]["nodes"]}
        found |= {p["id"]: p for p in graph["packages"] if p["id"] in used}
    return sorted(found.values(), key=lambda p: (p["name"], p["version"]))


def satisfies(expression, allowed, used):
    """Whether an SPDX expression can be met with the allowed licences; notes those that were used."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    at = 0

    def peek():
        return tokens[at] if at < len(tokens) else None

    def take():
        nonlocal at
        at += 1
        return tokens[at - 1]

    def either():
        met = both()
        while peek() == "OR":
            take()
            other = both()
            met = met or other
        return met

    def both():
        met = one()
        while peek() == "AND":
            take()
            other = one()
            met = met and other
        return met

    def one():
        name = take()
        if name == "(":
            met = either()
            assert take() == ")", expression
            return met
        if peek() == "WITH":
            take()
            name += " WITH " + take()
        if name in allowed:
            used.add(name)
        return name in allowed

    met = either()
    assert at == len(tokens), f"not an SPDX expression: {expression}"
    return met


def check_licences(rules, external):
    allowed, used = set(rules["licenses"]["allow"]), set()
    for p in external:
        licence = p["license"]
        if licence is None:
            yield f"{p['name']} {p['version']}: states no licence"
        elif not satisfies(licence, allowed, used):
            yield f"{p['name']} {p['version']}: licence {licence} is not allowed"
    for name in sorted(allowed - used):
        print(f"warning: no dependency uses the allowed licence {name}")


def is_skipped(name, version, skips, used):
    for skip in skips:
        skipped_name, _, skipped_version = skip["crate"].partition("@")
        if name == skipped_name and (version + ".").startswith(skipped_version + "."):
            used.add(skip["crate"])
            return True
    return False


def check_versions(rules, external):
    versions, used = collections.defaultdict(list), set()
    for p in external:
        versions[p["name"]].append(p["version"])
    skips = rules["bans"]["skip"]
    for name, all_versions in versions.items():
        if len(all_versions) < 2:
            continue
        left = [v for v in all_versions if not is_skipped(name, v, skips, used)]
        if len(left) > 1:
            yield f"{name}: several versions, {', '.join(left)}"
    for skip in skips:
        if skip["crate"] not in used:
            print(f"warning: {skip['crate']} need not be skipped any more")


def check_wildcards(ours):
    for p in ours:
        for dependency in p["dependencies"]:
            if dependency["req"] == "*":
                yield f"{p['name']} asks for any version of {dependency['name']}"


def check_sources(rules, external):
    allowed = {"registry+" + url for url in rules["sources"]["allow-registry"]}
    for p in external:
        if p["source"] not in allowed:
            yield f"{p['name']} {p['version']}: comes from {p['source']}"


def main():
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    everything = packages(rules["graph"]["targets"])
    ours = [p for p in everything if p["source"] is None]
    external = [p for p in everything if p["source"] is not None]
    problems = [
        *check_licences(rules, external),
        *check_versions(rules, external),
        *check_wildcards(ours),
        *check_sources(rules, external),
    ]
    for problem in problems:
        print(f"error: {problem}")
    print(f"{len(external)} dependencies looked at, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
