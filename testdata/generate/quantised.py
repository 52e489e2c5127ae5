# SPDX-License-Identifier: Apache-2.0
"""What the quantised cases share: transformers blocks that hold a producer's dequantised weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Callable

import torch
from safetensors.torch import load_file

from models import ARCHITECTURES

PROJECTIONS = {"nemotron_h": ("up_proj", "down_proj"), **{name: ("w1", "w3", "w2") for name in (
    "minimax_m2", "deepseek_v4", "deepseek_v4_hash")}}
FILE_PREFIX = {"minimax_m2": "model.layers.{layer}.block_sparse_moe.experts.", "deepseek_v4": "layers.{layer}.ffn.experts.",
               "deepseek_v4_hash": "layers.{layer}.ffn.experts.",
               "nemotron_h": "backbone.layers.{layer}.mixer.experts.", "mixtral": "model.layers.{layer}.block_sparse_moe.experts."}
SHOWN_EXPERT = 1  # the one with a tiny row and a zero row, see models.fill_experts


def projections(architecture: str) -> tuple[str, ...]:
    """Projection names in the checkpoint; the last one is the down projection."""
    return PROJECTIONS.get(architecture, ("gate_proj", "up_proj", "down_proj"))


def expert_prefix(architecture: str) -> str:
    return FILE_PREFIX.get(architecture, "model.layers.{layer}.mlp.experts.").format(layer=ARCHITECTURES[architecture].layer)


def load_folder(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def dequantised_experts(folder: Path, architecture: str, experts: int, dequantise: Callable) -> dict[str, torch.Tensor]:
    """{tensor name: F32 weight} of every routed expert, by the producer's own dequantise(tensors, stem)."""
    tensors = load_folder(folder)
    prefix = expert_prefix(architecture)
    stems = [f"{prefix}{e}.{p}" for e in range(experts) for p in projections(architecture)]
    return {f"{stem}.weight": dequantise(tensors, stem).float() for stem in stems}


def blocks_with(block: torch.nn.Module, architecture: str, weights: dict[str, torch.Tensor]):
    """(BF16 block, F32 block): copies of a BF16 MoE block whose routed experts hold these weights."""
    prefix = expert_prefix(architecture)
    count = block.experts.down_proj.shape[0]
    *first, down = projections(architecture)
    fc1 = torch.stack([torch.cat([weights[f"{prefix}{e}.{p}.weight"] for p in first]) for e in range(count)])
    fc2 = torch.stack([weights[f"{prefix}{e}.{down}.weight"] for e in range(count)])
    name = "gate_up_proj" if len(first) == 2 else "up_proj"
    narrow, exact = copy.deepcopy(block), copy.deepcopy(block).float()
    for target, dtype in ((narrow, torch.bfloat16), (exact, torch.float32)):
        assert getattr(target.experts, name).shape == fc1.shape and target.experts.down_proj.shape == fc2.shape
        setattr(target.experts, name, torch.nn.Parameter(fc1.to(dtype), requires_grad=False))
        target.experts.down_proj = torch.nn.Parameter(fc2.to(dtype), requires_grad=False)
    return narrow, exact


def shown(weights: dict[str, torch.Tensor], architecture: str) -> dict[str, torch.Tensor]:
    """The dequantised weights of one expert, as they go into expected.safetensors."""
    prefix = f"{expert_prefix(architecture)}{SHOWN_EXPERT}."
    return {f"dequant.{name}": value for name, value in weights.items() if name.startswith(prefix)}
