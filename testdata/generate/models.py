# SPDX-License-Identifier: Apache-2.0
"""The tiny models that testdata/checkpoints/ is made from: real architecture classes, awkward extents, seeded weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV4Config,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    Llama4TextConfig,
    MiniMaxM2Config,
    MixtralConfig,
    NemotronHConfig,
    Qwen3MoeConfig,
)

SMALL = {"vocab_size": 32, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}


# `input_ids` of the rows of `hidden_states`, for routers that select by token
TOKEN_IDS = (3, 31, 0, 7, 7, 16, 2, 30, 11)


def run_experts(block, hidden, ids, weights):
    return block.experts(hidden, ids, weights)


def route_minimax(block, hidden):
    return block.gate(hidden, block.e_score_correction_bias)


def route_hash(block, hidden):
    return block.gate(hidden, torch.tensor(TOKEN_IDS[: hidden.shape[0]]))


def route_step(block, hidden):
    """The block multiplies the experts' sum by the factor: on the weights it is the same."""
    logits, weights, ids = block.gate(hidden)
    return logits, weights * block.routed_scaling_factor, ids


def route_gemma4(layer, hidden):
    """The router's own normalisation first: logits are no plain product of its input."""
    router = layer.router
    logits = router.proj(router.norm(hidden) * router.scale * router.scalar_root_size)
    return (logits, *router(hidden)[1:])


def route_llama4(block, hidden):
    scores, logits = block.router(hidden)
    ids = logits.topk(block.top_k, dim=1).indices
    return logits, scores.gather(1, ids), ids


def run_llama4(block, hidden, ids, weights):
    """Every expert sees every token, scaled by its score: 0 where it is not selected."""
    scores = torch.zeros(hidden.shape[0], block.num_experts, dtype=weights.dtype).scatter_(1, ids, weights)
    scaled = hidden.repeat(block.num_experts, 1) * scores.to(hidden.dtype).T.reshape(-1, 1)
    return block.experts(scaled).reshape(block.num_experts, -1, hidden.shape[1]).sum(0)


@dataclass(frozen=True)
class Architecture:
    """One model family and where its MoE block lives."""

    config: Callable[..., object]
    layer: int  # the layer whose MoE block the expected values belong to
    block: str = "model.layers.{layer}.mlp"  # module path inside the transformers model
    router: str = "gate"
    route: Callable | None = None  # (block, states) -> logits, weights, ids; None: what the router module gives
    run: Callable = run_experts  # (block, states, ids, weights) -> sum over the routed experts
    fixed: dict = field(default_factory=dict)

    def make_config(self, **extents):
        return self.config(**{**SMALL, **ATTENTION, **self.fixed, **extents})


DEEPSEEK_V4 = {
    "num_hidden_layers": 2, "q_lora_rank": 16, "layer_types": ["sliding_attention"] * 2, "hc_mult": 2, "o_groups": 2,
    "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "sliding_window": 16}
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
    "minimax_m2": Architecture(MiniMaxM2Config, 0, route=route_minimax, fixed={"num_hidden_layers": 1}),
    "deepseek_v4": Architecture(DeepseekV4Config, 1, fixed={**DEEPSEEK_V4, "mlp_layer_types": ["hash_moe", "moe"]}),
    "deepseek_v4_hash": Architecture(DeepseekV4Config, 0, route=route_hash, fixed={
        **DEEPSEEK_V4, "num_hidden_layers": 1, "layer_types": ["sliding_attention"], "mlp_layer_types": ["hash_moe"]}),
    "gemma4": Architecture(Gemma4TextConfig, 0, block="model.layers.{layer}", route=route_gemma4, fixed={
        "num_hidden_layers": 1, "intermediate_size": 32, "enable_moe_block": True, "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 32, "layer_types": ["full_attention"], "global_head_dim": 16}),
    "llama4": Architecture(Llama4TextConfig, 0, block="model.layers.{layer}.feed_forward", route=route_llama4,
                           run=run_llama4, fixed={"num_hidden_layers": 1, "moe_layers": [0], "intermediate_size_mlp": 32,
                                                  "num_experts_per_tok": 1}),
}
if hasattr(transformers, "Step3p7Config"):  # since transformers 5.17
    ARCHITECTURES["step3p5"] = Architecture(
        lambda **values: transformers.Step3p7Config(text_config=values, vision_config={
            "width": 8, "layers": 1, "heads": 1, "image_size": 8, "patch_size": 4}),
        0, block="model.language_model.layers.{layer}.mlp", route=route_step, fixed={
            "pad_token_id": 0, "sliding_window": 16, "num_hidden_layers": 2, "intermediate_size": 32, "share_expert_dim": 16, "mlp_layer_types": ["sparse", "sparse"],
            "swiglu_limits": [0.0, 7.0], "swiglu_limits_shared": [0.0, 16.0], "moe_router_scaling_factor": 3.0})


def fill_experts(weight: torch.Tensor, rng: torch.Generator, transposed: bool, interleaved: bool, fused: bool) -> None:
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
    if fused and not interleaved:  # rows gate then up
        rows[:, : rows.shape[1] // 2] *= 1.7
    if fused and interleaved:  # gpt-oss: rows g0, u0, g1, u1, ...; large enough that the limit of 7 clips some of them
        rows[:, 0::2] *= 2.5
        rows[:, 1::2] *= 1.6
    rows[1, 3] *= 2.0**-15
    rows[1, 5] = 0.0
    rows[min(2, experts - 1), 7, 9] = 12.0 / inputs**0.5
    weight.data.copy_(values)


def fill(model: torch.nn.Module, seed: int) -> None:
    """Seeded weights for the whole model; parameters are visited in sorted name order."""
    rng = torch.Generator().manual_seed(seed)
    interleaved = model.config.model_type == "gpt_oss"
    transposed = interleaved or model.config.model_type == "llama4_text"
    tensors = sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0])
    for name, tensor in tensors:
        leaf = name.rsplit(".", 1)[-1]
        if "experts." in name and "shared" not in name and tensor.dim() == 3:
            fill_experts(tensor, rng, transposed, interleaved, fused=leaf == "gate_up_proj")
        elif leaf == "e_score_correction_bias":
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 0.15)
        elif leaf.endswith("_bias") or name.endswith("router.bias"):
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 0.3)
        elif leaf == "tid2eid":  # distinct experts in every row
            order = torch.rand(tensor.shape[0], model.config.n_routed_experts, generator=rng).argsort(1)
            tensor.data.copy_(order[:, : tensor.shape[1]])
        elif leaf == "per_expert_scale":
            tensor.data.copy_(0.5 + torch.rand(tensor.shape, generator=rng))
        elif name.endswith("router.scale"):
            tensor.data.copy_(1 + 0.2 * torch.randn(tensor.shape, generator=rng))
        elif name.endswith("router.proj.weight"):  # its input is normalised to length 1
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 2)
        elif name.endswith(("gate.weight", "router.weight")):
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 1.5 / tensor.shape[-1] ** 0.5)
        elif tensor.dim() == 2 and leaf == "weight":
            tensor.data.copy_(torch.randn(tensor.shape, generator=rng) * 0.05)


def model_class(architecture: str):
    return transformers.Step3p7ForConditionalGeneration if architecture == "step3p5" else AutoModelForCausalLM


def make_model(architecture: str, seed: int, **extents) -> torch.nn.Module:
    """A seeded BF16 model. Routers are BF16 as in the published checkpoints; the correction bias stays F32."""
    torch.manual_seed(seed)  # for the parameters that fill() leaves as the model class draws them
    config = ARCHITECTURES[architecture].make_config(**extents)
    loader = model_class(architecture)
    make = getattr(loader, "from_config", None) or loader._from_config
    model = make(config, dtype=torch.bfloat16, experts_implementation="eager")
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias") and hasattr(module, "weight"):
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
