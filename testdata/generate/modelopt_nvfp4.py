# SPDX-License-Identifier: Apache-2.0
"""NVFP4 checkpoints written by NVIDIA ModelOpt (nvidia-modelopt): mtq.quantize, then export_hf_checkpoint."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from expected import expected_values, write_expected, write_input
from models import ARCHITECTURES, make_model, moe_block, silence
from provenance import COMMON_NUMERICS, Facts
from quantised import blocks_with, dequantised_experts, expert_prefix, load_folder, projections, shown

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

GROUP = 16

NUMERICS = [
    "`dequant.NAME` [N,K] F32: ModelOpt's `NVFP4QTensor.dequantize(dtype=float32)` of expert 1's tensor NAME:"
    " fl32(code · fl32(weight_scale · weight_scale_2)), so at most two F32 roundings away from the exact value.",
    "`output` and `output_bf16` use these dequantised weights of **all** experts (`output_bf16` rounds them to BF16 first);"
    " activations are not quantised: this is W4A16.",
]
W4A4_NUMERICS = (
    "`output_w4a4` [M,H] F32: transformers' experts module in F32 with the dequantised weights, whose two linears see activations"
    " that went through ModelOpt's `NVFP4QTensor.quantize` (groups of 16, the checkpoint's `input_scale` as global) and `dequantize`;"
    " the intermediate is rounded to BF16 before its quantisation. (ModelOpt's own fake-quantised module runs only on CUDA.)")


def dequantise(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    packed = tensors[f"{stem}.weight"]
    shape = torch.Size((packed.shape[0], packed.shape[1] * 2))
    quantised = NVFP4QTensor(shape, torch.float32, packed)
    return quantised.dequantize(dtype=torch.float32, scale=tensors[f"{stem}.weight_scale"],
                                double_scale=tensors[f"{stem}.weight_scale_2"], block_sizes={-1: GROUP})


def calibrate(seed: int):
    rng = torch.Generator().manual_seed(seed)

    def loop(model):
        for _ in range(8):
            model(torch.randint(0, model.config.vocab_size, (4, 24), generator=rng))

    return loop


@dataclass(frozen=True)
class ModelOptCase:
    architecture: str
    seed: int
    extents: dict
    config: str  # name of ModelOpt's preset
    about: str
    notes: tuple[str, ...] = ()
    separate_globals: bool = False

    def __call__(self, folder: Path) -> Facts:
        base = make_model(self.architecture, self.seed, **self.extents)
        self.quantise_and_export(base, folder)
        if self.separate_globals:
            requantise_projections(base, self.architecture, folder)
        block = moe_block(base, self.architecture)
        experts = block.experts.down_proj.shape[0]
        weights = dequantised_experts(folder, self.architecture, experts, dequantise)
        narrow, exact = blocks_with(block, self.architecture, weights)
        values = expected_values(narrow, exact, self.architecture, base.config.hidden_size, self.seed + 1)
        numerics = COMMON_NUMERICS + NUMERICS
        scales = input_scales(folder, self.architecture, experts)
        if scales is not None:
            values["output_w4a4"] = w4a4_output(exact, values, scales)
            numerics = numerics + [W4A4_NUMERICS]
        write_expected(folder, {**values, **shown(weights, self.architecture)})
        return Facts(about=self.about, tool=self.tool(), layer=ARCHITECTURES[self.architecture].layer, seed=self.seed,
                     numerics=numerics, notes=list(self.notes),
                     packages=("nvidia-modelopt", "torch", "transformers", "safetensors"))

    def tool(self) -> str:
        text = f"NVIDIA ModelOpt: `mtq.quantize(model, mtq.{self.config}, calibration)` and `export_hf_checkpoint`, on the CPU"
        if self.separate_globals:
            text += ("; then the routed experts' tensors of the same file were replaced by ModelOpt's `NVFP4QTensor.quantize`"
                     " of each projection on its own, so that gate and up have **different** `weight_scale_2`")
        return text

    def quantise_and_export(self, base: torch.nn.Module, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as source:
            base.save_pretrained(source)
            model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, experts_implementation="eager").eval()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            mtq.quantize(model, getattr(mtq, self.config), calibrate(self.seed + 2))
            export_hf_checkpoint(model, export_dir=folder)


def input_scales(folder: Path, architecture: str, experts: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(FC1, FC2) input scales, which ModelOpt's fused experts share; None for a weight-only checkpoint."""
    tensors = load_folder(folder)
    prefix, names = expert_prefix(architecture), projections(architecture)
    if f"{prefix}0.{names[0]}.input_scale" not in tensors:
        return None
    first = {float(tensors[f"{prefix}{e}.{n}.input_scale"]) for e in range(experts) for n in names[:-1]}
    down = {float(tensors[f"{prefix}{e}.{names[-1]}.input_scale"]) for e in range(experts)}
    assert len(first) == 1 and len(down) == 1, "input scales differ between experts"
    return torch.tensor(first.pop()), torch.tensor(down.pop())


def w4a4_output(exact: torch.nn.Module, values: dict[str, torch.Tensor], scales: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The experts module with quantised and dequantised activations; its linears are called FC1, FC2, FC1, FC2, ..."""
    linear = torch.nn.functional.linear
    calls = 0

    def quantised_linear(x, weight, bias=None):
        nonlocal calls
        scale = scales[calls % 2]
        calls += 1
        rounded = x.to(torch.bfloat16).float()
        packed, block_scale, _ = NVFP4QTensor.quantize(rounded.clone(), GROUP, weights_scaling_factor_2=scale)
        x = packed.dequantize(dtype=torch.float32, scale=block_scale, double_scale=scale, block_sizes={-1: GROUP})
        return linear(x, weight, bias)

    with torch.no_grad():
        torch.nn.functional.linear = quantised_linear
        try:
            output = exact.experts(values["hidden_states"].float(), values["topk_ids"], values["topk_weights"])
        finally:
            torch.nn.functional.linear = linear
    assert calls == 2 * values["topk_ids"].unique().numel()
    return output


def requantise_projections(base: torch.nn.Module, architecture: str, folder: Path) -> None:
    """Replace the experts of model.safetensors: every projection gets its own global."""
    tensors = load_folder(folder)
    prefix, names = expert_prefix(architecture), projections(architecture)
    experts = moe_block(base, architecture).experts
    gate_up = experts.gate_up_proj.detach()
    for e in range(gate_up.shape[0]):
        gate, up = gate_up[e].chunk(2)
        for name, weight in zip(names, (gate, up, experts.down_proj.detach()[e])):
            packed, scale, scale_2 = NVFP4QTensor.quantize(weight.clone(), GROUP)
            stem = f"{prefix}{e}.{name}"
            for leaf, value in (("weight", packed._quantized_data), ("weight_scale", scale), ("weight_scale_2", scale_2)):
                assert tensors[f"{stem}.{leaf}"].shape == value.shape and tensors[f"{stem}.{leaf}"].dtype == value.dtype
                tensors[f"{stem}.{leaf}"] = value.contiguous()
        assert tensors[f"{prefix}{e}.{names[0]}.weight_scale_2"] != tensors[f"{prefix}{e}.{names[1]}.weight_scale_2"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def make_dormant(folder: Path) -> Facts:
    """A checkpoint with an expert whose weights are all zero, for which ModelOpt writes NaN block scales."""
    seed, dormant = 20240716, 2
    extents = {"hidden_size": 48, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    base = make_model("qwen3_moe", seed, **extents)
    silence(moe_block(base, "qwen3_moe"), dormant)
    case = ModelOptCase("qwen3_moe", seed, extents, "NVFP4_EXPERTS_ONLY_CFG", "")
    case.quantise_and_export(base, folder)
    tensors, prefix = load_folder(folder), expert_prefix("qwen3_moe")
    for name in projections("qwen3_moe"):
        stem = f"{prefix}{dormant}.{name}"
        assert tensors[f"{stem}.weight_scale_2"] == 0 and tensors[f"{stem}.weight_scale"].float().isnan().all()
        assert (tensors[f"{stem}.weight_scale"].view(torch.uint8) == 0xFF).all() and (tensors[f"{stem}.weight"] == 0x77).all()
        assert dequantise(tensors, stem).isnan().all()
    write_input(folder, {"hidden_states": torch.randn(4, 48, generator=torch.Generator().manual_seed(seed + 1)).to(torch.bfloat16)})
    return Facts(about="Qwen3-MoE, H 48, I 16, E 4, top-2, with a **dormant** expert 2: the weights that went in are all zero."
                       " There is no expected.safetensors: ModelOpt's own dequantisation of this expert is NaN.",
                 tool=case.tool(), layer=1, seed=seed, numerics=["none: a loader refuses the layer, or says what it does instead"],
                 notes=["For the three projections of expert 2 ModelOpt wrote `weight_scale_2` = 0, every `weight_scale` = NaN (0xFF)"
                        " and every code 7 (bytes 0x77). The other experts are ordinary."],
                 packages=("nvidia-modelopt", "torch", "transformers", "safetensors"))


FUSED_NOTE = ("On transformers 5's fused experts ModelOpt gives gate and up **one** quantiser: their `weight_scale_2` are equal,"
              " and one `input_scale` is shared by all experts.")
ZERO_NOTE = ("A group of zeros gets codes 0 and the block scale 1.0, not 0. (For a tensor that is zero as a whole,"
             " `NVFP4QTensor.quantize` of this version writes `weight_scale_2` 0 and **NaN** block scales.)")
CASES = {
    "modelopt_nvfp4_qwen3_moe": ModelOptCase(
        "qwen3_moe", 20240711,
        {"hidden_size": 80, "moe_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 2}, "NVFP4_DEFAULT_CFG",
        "Qwen3-MoE, H 80, I 48 (odd numbers of 16-groups), E 6, top-2. Attention and the dense layer are NVFP4 too.",
        (FUSED_NOTE, ZERO_NOTE, "ModelOpt's block quantiser asserts K % 16 = 0, so K that is only a multiple of 8 cannot be made with it.")),
    "modelopt_nvfp4_deepseek_v3": ModelOptCase(
        "deepseek_v3", 20240712,
        {"hidden_size": 112, "moe_intermediate_size": 48, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
        "NVFP4_EXPERTS_ONLY_CFG",
        "DeepSeek-V3, H 112, I 48, E 8 in 4 groups of which 2 are taken, top-3, routed_scaling_factor 2.5. Only the experts are NVFP4;"
        " attention, the shared expert and the dense layer stay BF16.", (FUSED_NOTE, ZERO_NOTE, "`mlp.gate.weight` is F32 here, because transformers loads it so.")),
    "modelopt_nvfp4_nemotron_h": ModelOptCase(
        "nemotron_h", 20240713,
        {"hidden_size": 80, "moe_intermediate_size": 112, "n_routed_experts": 6, "num_experts_per_tok": 2}, "NVFP4_EXPERTS_ONLY_CFG",
        "Nemotron-H, H 80, I 112, E 6, top-2, relu2 and not gated, only the experts are NVFP4.",
        (ZERO_NOTE, "This ModelOpt writes names like `backbone.layers.0.\\u0000backbone.pt_name_sentinel*` into `exclude_modules` and `ignore`"
                    " of this architecture. They are left as they are: a loader must survive them.")),
    "modelopt_w4a16_nvfp4_glm4_moe": ModelOptCase(
        "glm4_moe", 20240714,
        {"hidden_size": 112, "moe_intermediate_size": 80, "n_routed_experts": 5, "num_experts_per_tok": 3}, "W4A16_NVFP4_CFG",
        "GLM-4-MoE, H 112, I 80, E 5, top-3, weights only: `quant_algo` is `W4A16_NVFP4` and there is no `input_scale`.",
        (FUSED_NOTE, ZERO_NOTE)),
    "modelopt_nvfp4_dormant_expert": make_dormant,
    "modelopt_nvfp4_unequal_globals": ModelOptCase(
        "qwen3_moe", 20240715,
        {"hidden_size": 112, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}, "NVFP4_EXPERTS_ONLY_CFG",
        "Qwen3-MoE, H 112, I 48, E 4, top-2, gate and up with different globals, as checkpoints from per-expert linears have.",
        ("Everything but the routed experts' `weight`, `weight_scale`, `weight_scale_2` is as `export_hf_checkpoint` wrote it.",),
        separate_globals=True),
}
