# SPDX-License-Identifier: Apache-2.0
"""GGUF files written by the gguf package: MXFP4 by its own quantiser, NVFP4 from ModelOpt's codes and scales."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import quants

from expected import expected_values, write_expected
from models import ARCHITECTURES, make_model, moe_block
from provenance import COMMON_NUMERICS, Facts
from quantised import SHOWN_EXPERT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

ARCHS = {"qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS}
NUMERICS = [
    "`dequant.NAME` [N,K] F32: expert 1 of the tensor as `gguf.quants.dequantize` of the gguf package reads it back from the file, times"
    " the expert's `.scale` where there is one (one F32 product). `output` and `output_bf16` use these values of **all** experts.",
]


def projections(block: torch.nn.Module, architecture: str) -> dict[str, torch.Tensor]:
    """gate, up, down [E,N,K] F32 of the routed experts."""
    fused, down = block.experts.gate_up_proj.detach().float(), block.experts.down_proj.detach().float()
    if architecture == "gpt_oss":  # [E,K,N], rows g0, u0, g1, u1, ...
        fused, down = fused.transpose(1, 2), down.transpose(1, 2)
        return {"gate": fused[:, 0::2].contiguous(), "up": fused[:, 1::2].contiguous(), "down": down.contiguous()}
    gate, up = fused.chunk(2, dim=1)
    return {"gate": gate.contiguous(), "up": up.contiguous(), "down": down.contiguous()}


def nvfp4_blocks(weight: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """[E,N,K] -> bytes [E,N,K/64*36] in GGUF's block order and the globals [E], quantised by ModelOpt."""
    blocks, scales = [], []
    for expert in weight:
        quantised, scale, scale_2 = NVFP4QTensor.quantize(expert, 16)
        packed = quantised._quantized_data.numpy().reshape(expert.shape[0], -1, 4, 8)  # [N, K/64, 4, 8], low nibble = even k
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:3], 16)
        halves = codes[..., :8] | codes[..., 8:] << 4
        scale_bytes = scale.view(torch.uint8).numpy().reshape(expert.shape[0], -1, 4)
        block = np.concatenate([scale_bytes, halves.reshape(*scale_bytes.shape[:2], 32)], axis=-1)
        blocks.append(block.reshape(expert.shape[0], -1))
        scales.append(float(scale_2))
    return np.stack(blocks), np.array(scales, np.float32)


def align_router_to_q8_0(block: torch.nn.Module) -> None:
    """Round the router so that Q8_0 holds it exactly: 127 steps of 2^-9 in every block of 32."""
    weight = block.gate.weight.data
    steps = torch.round(weight.float() * 512).clamp(-126, 126)
    steps[:, ::32] = 127
    weight.copy_(steps / 512)


@dataclass(frozen=True)
class GgufCase:
    architecture: str
    seed: int
    extents: dict
    experts: Type
    router: Type
    about: str
    notes: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> Facts:
        model = make_model(self.architecture, self.seed, **self.extents)
        block = moe_block(model, self.architecture)
        if self.router == Type.Q8_0:
            align_router_to_q8_0(block)
        self.write(model, folder / "model.gguf")
        narrow, exact, shown = self.read_back(block, folder / "model.gguf")
        values = expected_values(narrow, exact, self.architecture, model.config.hidden_size, self.seed + 1)
        write_expected(folder, {**values, **shown})
        tool = "`gguf.GGUFWriter` of the gguf package from a transformers model, names from its `TensorNameMap`; "
        tool += ("experts quantised by ModelOpt's `NVFP4QTensor.quantize`, its codes and scales put in GGUF's block order by the script"
                 " (the package reads NVFP4 but has no quantiser for it)" if self.experts == Type.NVFP4 else
                 "experts quantised by `gguf.quants.quantize`")
        return Facts(about=self.about, tool=tool, layer=ARCHITECTURES[self.architecture].layer, seed=self.seed,
                     numerics=COMMON_NUMERICS + NUMERICS, notes=list(self.notes),
                     packages=("gguf", "nvidia-modelopt", "torch", "transformers", "safetensors"))

    @property
    def block_name(self) -> str:
        return f"blk.{ARCHITECTURES[self.architecture].layer}"

    def write(self, model: torch.nn.Module, path: Path) -> None:
        arch = ARCHS[self.architecture]
        writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
        self.write_metadata(writer, model.config)
        names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
        for name, value in model.state_dict().items():
            if ".experts." in name and "shared" not in name:
                continue
            is_router = name.endswith((".gate.weight", ".router.weight"))
            mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if mapped is None and name.endswith("e_score_correction_bias"):
                mapped = name.split(".mlp.")[0].replace("model.layers", "blk") + ".exp_probs_b.bias"
            if mapped is None:
                continue  # attention sinks and the like
            array = value.float().numpy()
            kind = self.router if is_router else Type.F32 if array.ndim < 2 else Type.F16
            writer.add_tensor(mapped, quants.quantize(array, kind), raw_dtype=kind)
        self.write_experts(writer, model)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def write_metadata(self, writer: gguf.GGUFWriter, config) -> None:
        writer.add_block_count(config.num_hidden_layers)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
        writer.add_expert_count(getattr(config, "n_routed_experts", None) or getattr(config, "num_local_experts", None) or config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
        if self.architecture == "glm4_moe":
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_weights_norm(config.norm_topk_prob)
            writer.add_expert_weights_scale(config.routed_scaling_factor)
            writer.add_expert_shared_count(config.n_shared_experts)

    def write_experts(self, writer: gguf.GGUFWriter, model: torch.nn.Module) -> None:
        for layer in range(model.config.num_hidden_layers):
            block = model.model.layers[layer].mlp
            if not hasattr(block, "experts"):
                continue
            for role, weight in projections(block, self.architecture).items():
                stem = f"blk.{layer}.ffn_{role}_exps"
                if self.experts == Type.NVFP4:
                    blocks, scales = nvfp4_blocks(weight)
                    writer.add_tensor(f"{stem}.weight", blocks, raw_dtype=Type.NVFP4)
                    writer.add_tensor(f"{stem}.scale", scales)
                else:
                    writer.add_tensor(f"{stem}.weight", quants.quantize(weight.numpy(), self.experts), raw_dtype=self.experts)
            if self.architecture == "gpt_oss":
                fused = block.experts.gate_up_proj_bias.detach().float()
                biases = {"gate": fused[:, 0::2], "up": fused[:, 1::2], "down": block.experts.down_proj_bias.detach().float()}
                for role, bias in biases.items():
                    writer.add_tensor(f"blk.{layer}.ffn_{role}_exps.bias", bias.contiguous().numpy())

    def read_back(self, block: torch.nn.Module, path: Path):
        """(BF16 block, F32 block, dequant tensors) from the file, through gguf.GGUFReader and gguf.quants.dequantize."""
        tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
        weights, shown = {}, {}
        for role in ("gate", "up", "down"):
            stem = f"{self.block_name}.ffn_{role}_exps"
            value = torch.from_numpy(quants.dequantize(tensors[f"{stem}.weight"].data, tensors[f"{stem}.weight"].tensor_type).copy())
            if f"{stem}.scale" in tensors:
                value = value * torch.from_numpy(tensors[f"{stem}.scale"].data.copy())[:, None, None]
            weights[role] = value
            shown[f"dequant.{stem}.weight.{SHOWN_EXPERT}"] = value[SHOWN_EXPERT].clone()
        router = tensors[f"{self.block_name}.ffn_gate_inp.weight"]
        held = torch.from_numpy(quants.dequantize(router.data, router.tensor_type).copy())
        assert torch.equal(held, getattr(block, ARCHITECTURES[self.architecture].router).weight.float()), "router not exact in the file"
        if self.architecture == "gpt_oss":
            fused = torch.stack([weights["gate"], weights["up"]], dim=2).flatten(1, 2).transpose(1, 2)
            down = weights["down"].transpose(1, 2)
        else:
            fused, down = torch.cat([weights["gate"], weights["up"]], dim=1), weights["down"]
        narrow, exact = copy.deepcopy(block), copy.deepcopy(block).float()
        for target, dtype in ((narrow, torch.bfloat16), (exact, torch.float32)):
            assert target.experts.gate_up_proj.shape == fused.shape and target.experts.down_proj.shape == down.shape
            target.experts.gate_up_proj = torch.nn.Parameter(fused.to(dtype).contiguous(), requires_grad=False)
            target.experts.down_proj = torch.nn.Parameter(down.to(dtype).contiguous(), requires_grad=False)
        return narrow, exact, shown


CASES = {
    "gguf_mxfp4_qwen3_moe": GgufCase(
        "qwen3_moe", 20240751,
        {"hidden_size": 64, "moe_intermediate_size": 96, "num_experts": 6, "num_experts_per_tok": 2}, Type.MXFP4, Type.F32,
        "GGUF, architecture qwen3moe, H 64, I 96, E 6, top-2, MXFP4 experts (type 39: halves of a block in one byte), F32 router."
        " Layer 0 is dense.",
        ("The renormalisation of qwen3moe stands in llama.cpp's graph, not in the file.",)),
    "gguf_nvfp4_glm4_moe": GgufCase(
        "glm4_moe", 20240752,
        {"hidden_size": 128, "moe_intermediate_size": 64, "n_routed_experts": 5, "num_experts_per_tok": 3}, Type.NVFP4, Type.Q8_0,
        "GGUF, architecture glm4moe, H 128, I 64, E 5, top-3, NVFP4 experts (type 40: four scales, then four runs of 16) with `.scale` [E],"
        " `exp_probs_b.bias`, **Q8_0** router. Layer 0 is dense.",
        ("The router's weights were rounded to multiples of 2^-9 before, so that Q8_0 and BF16 both hold them exactly.",)),
    "gguf_mxfp4_gpt_oss": GgufCase(
        "gpt_oss", 20240753,
        {"hidden_size": 96, "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2}, Type.MXFP4, Type.BF16,
        "GGUF, architecture gpt-oss, H 96, I 64, E 4, top-2, MXFP4 experts, gate and up apart, `ffn_*_exps.bias`, router bias, BF16 router."),
}
