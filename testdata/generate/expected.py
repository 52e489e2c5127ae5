# SPDX-License-Identifier: Apache-2.0
"""What transformers' own MoE block computes: the expected values of testdata/checkpoints/*/expected.safetensors."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import save_file

from models import ARCHITECTURES, TOKEN_IDS

TOKENS = 9
TOKEN_SCALES = (1.0, 0.25, 1.0, 1.5, 1.0, 0.05, 1.0, 0.5, 1.0)


def route(block: torch.nn.Module, architecture: str, hidden: torch.Tensor):
    """(logits, weights, ids) of the block's own router, in the dtype that the block has."""
    spec = ARCHITECTURES[architecture]
    return spec.route(block, hidden) if spec.route else getattr(block, spec.router)(hidden)


def run_experts(block: torch.nn.Module, architecture: str, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor):
    return ARCHITECTURES[architecture].run(block, hidden, ids, weights)


def same_experts(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.sort(-1).values, b.sort(-1).values)


def clear_tokens(block: torch.nn.Module, architecture: str, hidden_size: int, seed: int) -> torch.Tensor:
    """TOKENS random BF16 rows whose selection does not hang on rounding.

    A row is kept when the BF16 router, the F32 router and the F32 router on eight inputs perturbed by 1 %
    select the same experts: then any correct router, whatever its accumulation order, selects them too.
    """
    rng = torch.Generator().manual_seed(seed)
    wide = copy.deepcopy(block).float()
    rows: list[torch.Tensor] = []
    for _ in range(5000):
        if len(rows) == TOKENS:
            break
        x = (torch.randn(1, hidden_size, generator=rng) * TOKEN_SCALES[len(rows)]).to(torch.bfloat16)
        ids = route(wide, architecture, x.float())[2]
        noise = [x.float() * (1 + 0.01 * torch.randn(1, hidden_size, generator=rng)) for _ in range(8)]
        clear = same_experts(ids, route(block, architecture, x)[2])
        if clear and all(same_experts(ids, route(wide, architecture, n)[2]) for n in noise):
            rows.append(x)
    assert len(rows) == TOKENS, f"{architecture}: only {len(rows)} rows with a clear selection"
    return torch.cat(rows)


@torch.no_grad()
def expected_values(bf16_block, exact_block, architecture: str, hidden_size: int, seed: int) -> dict[str, torch.Tensor]:
    """
    bf16_block   the block as a user runs it: BF16 weights (dequantised ones rounded to BF16)
    exact_block  the same block with weights that hold the producer's dequantised values exactly (F32 or F64)
    """
    hidden = clear_tokens(bf16_block, architecture, hidden_size, seed)
    logits, weights, ids = route(copy.deepcopy(bf16_block).float(), architecture, hidden.float())
    wide = copy.deepcopy(exact_block).double()
    output = run_experts(wide, architecture, hidden.double(), ids, weights.double())
    _, bf16_weights, bf16_ids = route(bf16_block, architecture, hidden)
    assert same_experts(ids, bf16_ids)
    output_bf16 = run_experts(bf16_block, architecture, hidden, bf16_ids, bf16_weights)
    assert torch.isfinite(output).all() and output.abs().amax(1).min() > 0
    deviation = (output - output_bf16.double()).abs().max() / output.abs().max()
    assert deviation < 0.05, f"{architecture}: BF16 and F64 forwards differ by {deviation:.3g} of the largest output"
    tokens = {"token_ids": torch.tensor(TOKEN_IDS)} if architecture.endswith("_hash") else {}
    return {
        **tokens,
        "hidden_states": hidden,
        "router_logits": logits.float(),
        "topk_ids": ids.to(torch.int64),
        "topk_weights": weights.float(),
        "output": output.float(),
        "output_bf16": output_bf16,
    }


def write_input(folder: Path, values: dict[str, torch.Tensor]) -> None:
    """input.safetensors is what `moekit run --input` takes."""
    save_file({name: values[name] for name in ("hidden_states", "token_ids") if name in values}, folder / "input.safetensors")


def write_expected(folder: Path, values: dict[str, torch.Tensor]) -> None:
    tensors = {name: value.contiguous().clone() for name, value in values.items()}
    save_file(tensors, folder / "expected.safetensors")
    write_input(folder, tensors)
