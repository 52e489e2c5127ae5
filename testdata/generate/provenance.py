# SPDX-License-Identifier: Apache-2.0
"""PROVENANCE.md of one checkpoint folder, and the check that no file names the machine it was made on."""

from __future__ import annotations

import getpass
import hashlib
import importlib.metadata
import platform
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Facts:
    """What a reader must know about one folder."""

    about: str  # one paragraph: what it is, what is awkward in it
    tool: str  # who wrote the checkpoint, with which call
    layer: int
    seed: int
    numerics: list[str]  # one line for each tensor of expected.safetensors
    notes: list[str] = field(default_factory=list)
    packages: tuple[str, ...] = ("torch", "transformers", "safetensors")


COMMON_NUMERICS = [
    "`hidden_states` [M,H] BF16: random input of the MoE block, after the norm. Rows whose selection would hang on rounding were rejected.",
    "`router_logits` [M,E] F32: transformers' router module with its weights widened to F32, F32 input.",
    "`topk_ids` [M,T] I64, `topk_weights` [M,T] F32: that module's selection, in that module's order"
    " (DeepSeek-style routers do not sort: compare as a map from id to weight). Weights include normalisation and `routed_scaling_factor`.",
    "`output` [M,H] F32: transformers' experts module in **float64** (weights, input, intermediate), with these ids and weights,"
    " without shared experts, without residual, rounded once to F32. It does *not* round the intermediate to BF16.",
    "`output_bf16` [M,H] BF16: the same module as a user runs it in **BF16 on the CPU** (BF16 weights, BF16 result of each linear,"
    " activation and product, BF16 accumulation over experts in id order), with the BF16 model's own router weights."
    " Loose: it shows what the ecosystem computes, not what is right.",
]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_no_paths(folder: Path) -> None:
    words = [str(Path(__file__).resolve().parents[2]), str(Path.home()), socket.gethostname(), "/tmp", "/home", "site-packages"]
    if getpass.getuser() != "root":
        words.append(getpass.getuser())
    for path in folder.iterdir():
        content = path.read_bytes()
        for word in words:
            if len(word) > 3:
                assert word.encode() not in content, f"{path.name} contains {word!r}"


def write_provenance(folder: Path, name: str, facts: Facts) -> None:
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in facts.packages)
    lines = [
        f"# {name}", "", facts.about, "",
        f"* Made by: {facts.tool}",
        f"* Versions: {versions}; Python {'.'.join(map(str, sys.version_info[:3]))}, {platform.machine()} CPU, one thread",
        f"* Command: `python testdata/generate/make_checkpoints.py testdata/checkpoints {name}`; seed {facts.seed}",
        f"* Expected values belong to layer **{facts.layer}**", "",
        "## expected.safetensors", "",
    ]
    lines += [f"* {line}" for line in facts.numerics]
    if facts.notes:
        lines += ["", "## Notes", ""] + [f"* {line}" for line in facts.notes]
    lines += ["", "## Files", "", "| file | bytes | sha256 |", "|---|---|---|"]
    files = sorted(f for f in folder.iterdir() if f.name != "PROVENANCE.md")
    lines += [f"| {f.name} | {f.stat().st_size} | `{sha256(f)}` |" for f in files]
    (folder / "PROVENANCE.md").write_text("\n".join(lines) + "\n")
