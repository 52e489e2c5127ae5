# SPDX-License-Identifier: Apache-2.0
"""Unquantised BF16 checkpoints, written by transformers' save_pretrained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from expected import expected_values, write_expected
from models import ARCHITECTURES, make_model, model_class, moe_block
from provenance import COMMON_NUMERICS, Facts


@dataclass(frozen=True)
class PlainCase:
    architecture: str
    seed: int
    extents: dict
    about: str
    notes: tuple[str, ...] = ()
    max_shard_size: str = "1GB"

    def __call__(self, folder: Path) -> Facts:
        model = make_model(self.architecture, self.seed, **self.extents)
        model.save_pretrained(folder, max_shard_size=self.max_shard_size)
        loaded = model_class(self.architecture).from_pretrained(
            folder, dtype=torch.bfloat16, experts_implementation="eager").eval()
        assert_same(model, loaded)
        block = moe_block(loaded, self.architecture)
        write_expected(folder, expected_values(
            block, block, self.architecture, model.config.get_text_config().hidden_size, self.seed + 1))
        return Facts(about=self.about, tool=f"`{type(model).__name__}.save_pretrained` of transformers; expected values from the"
                     " model read back with `from_pretrained`", layer=ARCHITECTURES[self.architecture].layer, seed=self.seed,
                     numerics=COMMON_NUMERICS, notes=list(self.notes))


def assert_same(model: torch.nn.Module, loaded: torch.nn.Module) -> None:
    """The checkpoint holds every weight: what was read back is what was saved."""
    want, have = model.state_dict(), loaded.state_dict()
    assert want.keys() == have.keys()
    for name, value in want.items():
        assert torch.equal(value.double(), have[name].double()), name


CASES = {
    "qwen3_moe_bf16": PlainCase(
        "qwen3_moe", 20240701,
        {"hidden_size": 72, "moe_intermediate_size": 56, "num_experts": 8, "num_experts_per_tok": 3},
        "Qwen3-MoE, H 72, I 56, E 8, top-3, softmax over all experts then renormalised. Layer 0 is dense.",
        ("transformers 5 writes `num_local_experts` in config.json where published Qwen3-MoE checkpoints have `num_experts`.",)),
    "mixtral_bf16_sharded": PlainCase(
        "mixtral", 20240702,
        {"hidden_size": 56, "intermediate_size": 88, "num_local_experts": 4, "num_experts_per_tok": 2},
        "Mixtral, H 56, I 88, E 4, top-2, names `block_sparse_moe.experts.e.{w1,w2,w3}`, several shards with"
        " model.safetensors.index.json; experts of one layer lie in different shards.",
        ("The expert width is config.json's `intermediate_size`.",), max_shard_size="100KB"),
    "deepseek_v3_bf16": PlainCase(
        "deepseek_v3", 20240703,
        {"hidden_size": 88, "moe_intermediate_size": 40, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
        "DeepSeek-V3, H 88, I 40, E 8 in 4 groups of which 2 are taken, top-3, sigmoid scores, F32 correction bias,"
        " routed_scaling_factor 2.5, one shared expert. Layer 0 is dense.",
        ("`e_score_correction_bias` is F32, `mlp.gate.weight` BF16, as published.",)),
    "glm4_moe_bf16": PlainCase(
        "glm4_moe", 20240704,
        {"hidden_size": 104, "moe_intermediate_size": 56, "n_routed_experts": 6, "num_experts_per_tok": 4},
        "GLM-4-MoE, H 104, I 56, E 6, top-4, sigmoid scores, F32 correction bias, one group, routed_scaling_factor 1.5,"
        " one shared expert. Layer 0 is dense."),
    "nemotron_h_bf16": PlainCase(
        "nemotron_h", 20240705,
        {"hidden_size": 80, "moe_intermediate_size": 72, "n_routed_experts": 8, "num_experts_per_tok": 2},
        "Nemotron-H, H 80, I 72, E 8, top-2, relu2 and not gated: only `up_proj` and `down_proj`, names"
        " `backbone.layers.L.mixer.experts.e.*`; layers are Mamba, MoE, attention.",
        ("transformers 5 writes `layers_block_type`, not `num_hidden_layers`, and names Mamba layers `linear_attention`;"
         " published checkpoints have `hybrid_override_pattern` and `num_hidden_layers`.",
         "config.json writes infinity as `{\"__float__\": \"Infinity\"}`.")),
    "gpt_oss_bf16": PlainCase(
        "gpt_oss", 20240706,
        {"hidden_size": 88, "intermediate_size": 56, "num_local_experts": 5, "num_experts_per_tok": 3},
        "gpt-oss unquantised, H 88, I 56, E 5, top-3, softmax over the selected logits. Fused **transposed** tensors:"
        " `gate_up_proj` [E,H,2I] with columns g0, u0, g1, u1, …, `down_proj` [E,I,H], biases, router bias; swiglu limit 7."),
    "minimax_m2_bf16": PlainCase(
        "minimax_m2", 20240771,
        {"hidden_size": 72, "intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 2},
        "MiniMax-M2, H 72, I 40, E 5, top-2, sigmoid scores, correction bias, no groups, renormalised; names"
        " `block_sparse_moe.experts.e.{w1,w2,w3}`, `block_sparse_moe.e_score_correction_bias` (BF16, as transformers writes it)."),
    "gemma4_bf16": PlainCase(
        "gemma4", 20240772,
        {"hidden_size": 72, "moe_intermediate_size": 40, "num_experts": 5, "top_k_experts": 2},
        "Gemma-4, H 72, I 40, E 5, top-2, softmax over all, renormalised, times a learned `per_expert_scale`; gelu_tanh; fused"
        " `experts.gate_up_proj` [E,2I,H] beside a dense MLP.",
        ("The router normalises its input and multiplies it by `router.scale` before `router.proj`, and in the model it reads the"
         " residual while the experts read it after a norm: logits are given, not computed from `hidden_states` by a plain product."
         " Here `hidden_states` stands for both.",)),
    "llama4_bf16": PlainCase(
        "llama4", 20240773,
        {"hidden_size": 72, "intermediate_size": 40, "num_local_experts": 5},
        "Llama-4, H 72, I 40, E 5, top-1, sigmoid of the selected logit **on the experts' input**; fused **transposed**"
        " `feed_forward.experts.gate_up_proj` [E,H,2I], gate columns first; shared expert.",
        ("`output` is the experts' module on `hidden_states` times the score, in float64; the BF16 model rounds that product.",)),
}
STEP_CASES = {}
if "step3p5" in ARCHITECTURES:
    STEP_CASES = {"step3p5_bf16": PlainCase(
        "step3p5", 20240774,
        {"hidden_size": 56, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2},
        "Step-3.5, H 56, I 24, E 4, top-2, sigmoid scores, router bias, renormalised, `moe_router_scaling_factor` 3; stacked"
        " `moe.{gate,up,down}_proj.weight` [E,.,.]; layer 1 clamps its experts (`swiglu_limits` 7), layer 0 does not.",
        ("The clamp of layer 1 stands behind the activation, `min(silu(g), L)`: no activation of moekit does that, so the layer is refused.",))}
