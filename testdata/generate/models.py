# SPDX-License-Identifier: Apache-2.0
"""The tiny models that testdata/checkpoints/ is made from: real architecture classes, awkward extents, seeded weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    MixtralConfig,
    NemotronHConfig,
    Qwen3MoeConfig,
)

SMALL = {"vocab_size": 32, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}


@dataclass(frozen=True)
class Architecture:
    """One model family and where its MoE block lives."""

    config: Callable[..., object]
    layer: int  # the layer whose MoE block the expected values belong to
    block: str = "model.layers.{layer}.mlp"  # module path inside the transformers model
    router: str = "gate"
    fixed: dict = field(default_factory=dict)

    def make_config(self, **extents):
        return self.config(**{**SMALL, **ATTENTION, **self.fixed, **extents})


ARCHITECTURES = {
    # layer 0 is dense: a loader must not look for experts there
    "qwen3_moe": Architecture(Qwen3MoeConfig, 1, fixed={
        "num_hidden_layers": 2, "mlp_only_layers": [0], "intermediate_size": 48, "norm_topk_prob": True}),
    "mixtral": Architecture(MixtralConfig, 1, fixed={"num_hidden_layers": 2}),
    "deepseek_v3": Architecture(DeepseekV3Config, 1, fixed={
        "num_hidden_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 48, "num_mtp_layers": 0,
        "num_key_value_heads": 2, "head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1, "routed_scaling_factor": 2.5}),
    "glm4_moe": Architecture(Glm4MoeConfig, 1, fixed={
        "num_hidden_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 48, "num_mtp_layers": 0,
        "n_shared_experts": 1, "routed_scaling_factor": 1.5, "use_qk_norm": True}),
    "nemotron_h": Architecture(NemotronHConfig, 1, block="model.layers.{layer}.mixer", fixed={
        "layers_block_type": ["linear_attention", "moe", "full_attention"], "intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 2.5, "ssm_state_size": 8,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 16}),
    "gpt_oss": Architecture(GptOssConfig, 0, router="router", fixed={"num_hidden_layers": 1, "sliding_window": 16}),
}


def fill_experts(name: str, weight: torch.Tensor, rng: torch.Generator, transposed: bool, fused: bool) -> None:
    """Fill one stacked expert tensor [E, ., .] so that quantisation has something to do.

    Every expert and projection has its own magnitude, so per-expert globals and the globals of gate and up differ.
    Expert 1 has a row 2^-15 times smaller (E4M3 scales of that row are subnormal) and a row of zeros (dormant groups);
    expert 2 has one outlier of 12 standard deviations.
    """
    experts = weight.shape[0]
    inputs = weight.shape[1] if transposed else weight.shape[2]
    values = torch.randn(weight.shape, generator=rng, dtype=torch.float32) / inputs**0.5
    rows = values.transpose(1, 2) if transposed else values  # [E, N, K], a view
    for e in range(experts):
        rows[e] *= 0.6 + 0.25 * e
    if fused and not transposed:  # rows gate then up
        rows[:, : rows.shape[1] // 2] *= 1.7
    if transposed and fused:  # gpt-oss: rows g0, u0, g1, u1, ...; large enough that the limit of 7 clips some of them
        rows[:, 0::2] *= 2.5
        rows[:, 1::2] *= 1.6
    rows[1, 3] *= 2.0**-15
    rows[1, 5] = 0.0
    rows[min(2, experts - 1), 7, 9] = 12.0 / inputs**0.5
    weight.data.copy_(values)


def fill(model: torch.nn.Module, seed: int) -> None:
    """Seeded weights for the whole model; parameters are visited in sorted name order."""
    rng = torch.Generator().manual_seed(seed)
    transposed = model.config.model_type == "gpt_oss"
    tensors = sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0])
    for name, tensor in tensors:
        leaf = name.rsplit(".", 1)[-1]
        if "experts." in name and "shared" not in name and tensor.dim() == 3:
            fill_experts(name, tensor, rng, transposed, fused=leaf == "gate_up_proj")
        elif leaf == "e_score_correction_bias":
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 0.15)
        elif leaf.endswith("_bias") or name.endswith("router.bias"):
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 0.3)
        elif name.endswith(("gate.weight", "router.weight")):
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 1.5 / tensor.shape[-1] ** 0.5)
        elif tensor.dim() == 2 and leaf == "weight":
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 0.05)


def make_model(architecture: str, seed: int, **extents) -> torch.nn.Module:
    """A seeded BF16 model. Routers are BF16 as in the published checkpoints; the correction bias stays F32."""
    torch.manual_seed(seed)  # for the parameters that fill() leaves as the model class draws them
    config = ARCHITECTURES[architecture].make_config(**extents)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, experts_implementation="eager")
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.weight.data = module.weight.data.to(torch.bfloat16)
    fill(model, seed)
    model.eval()
    with torch.no_grad():  # a folder that transformers cannot run is no real checkpoint
        assert torch.isfinite(model(torch.arange(24).reshape(1, 24)).logits).all()
    return model


def silence(block: torch.nn.Module, expert: int) -> None:
    """Make one routed expert dormant: every weight of it is zero."""
    for name in ("gate_up_proj", "up_proj", "down_proj"):
        if hasattr(block.experts, name):
            getattr(block.experts, name).data[expert] = 0


def moe_block(model: torch.nn.Module, architecture: str) -> torch.nn.Module:
    spec = ARCHITECTURES[architecture]
    return model.get_submodule(spec.block.format(layer=spec.layer))
