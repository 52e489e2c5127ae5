# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors `nvfp4-pack-quantized` checkpoints written by llm-compressor's oneshot."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize as ct_dequantize
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM

from expected import expected_values, write_expected
from models import ARCHITECTURES, make_model, moe_block, silence
from provenance import COMMON_NUMERICS, Facts
from quantised import blocks_with, dequantised_experts, shown

TOKENS, SAMPLES = 24, 16
IGNORE = ["lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$"]

NUMERICS = [
    "`dequant.NAME.weight` [N,K] F32: compressed-tensors' `unpack_fp4_from_uint8(dtype=float32)` and `dequantize` of expert 1's"
    " `NAME.weight_packed`: fl32(code · fl32(weight_scale / weight_global_scale)), so at most two F32 roundings away from the exact value.",
    "`output` and `output_bf16` use these dequantised weights of **all** experts (`output_bf16` rounds them to BF16 first);"
    " activations are not quantised: this is W4A16.",
]


def dequantise(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    packed = tensors[f"{stem}.weight_packed"]
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
    arguments = preset_name_to_scheme("NVFP4", ["Linear"]).weights
    return ct_dequantize(codes, tensors[f"{stem}.weight_scale"].float(), args=arguments, dtype=torch.float32,
                         global_scale=tensors[f"{stem}.weight_global_scale"])


def calibration_set(vocabulary: int, seed: int) -> Dataset:
    rng = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, vocabulary, (TOKENS,), generator=rng).tolist() for _ in range(SAMPLES)]
    return Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * TOKENS] * SAMPLES})


@dataclass(frozen=True)
class CompressedCase:
    architecture: str
    seed: int
    extents: dict
    scheme: str  # llm-compressor's preset
    about: str
    notes: tuple[str, ...] = ()
    dormant: int | None = None  # an expert whose weights are all zero

    def __call__(self, folder: Path) -> Facts:
        base = make_model(self.architecture, self.seed, **self.extents)
        if self.dormant is not None:
            silence(moe_block(base, self.architecture), self.dormant)
        with tempfile.TemporaryDirectory() as source:  # oneshot and save_pretrained look there again
            base.save_pretrained(source)
            model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
            oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=self.scheme, ignore=IGNORE),
                    **self.calibration(model.config.vocab_size))
            model.save_pretrained(folder, save_compressed=True)
        block = moe_block(base, self.architecture)
        weights = dequantised_experts(folder, self.architecture, block.experts.down_proj.shape[0], dequantise)
        narrow, exact = blocks_with(block, self.architecture, weights)
        values = expected_values(narrow, exact, self.architecture, base.config.hidden_size, self.seed + 1)
        write_expected(folder, {**values, **shown(weights, self.architecture)})
        return Facts(
            about=self.about, layer=ARCHITECTURES[self.architecture].layer, seed=self.seed, numerics=COMMON_NUMERICS + NUMERICS,
            tool=f"llm-compressor: `oneshot` with `QuantizationModifier(targets=\"Linear\", scheme=\"{self.scheme}\")` and"
                 " `save_pretrained(save_compressed=True)`, on the CPU", notes=list(self.notes),
            packages=("llmcompressor", "compressed-tensors", "torch", "transformers", "safetensors"))

    def calibration(self, vocabulary: int) -> dict:
        if self.scheme != "NVFP4":
            return {}  # weights only: no activations to observe
        return {"dataset": calibration_set(vocabulary, self.seed + 2), "max_seq_length": TOKENS,
                "num_calibration_samples": SAMPLES}


GLOBAL_NOTE = ("Global scales are reciprocals: value = code · weight_scale / weight_global_scale. This llm-compressor gives gate and up"
               " of one expert the same `weight_global_scale`.")
CASES = {
    "compressed_nvfp4_qwen3_moe": CompressedCase(
        "qwen3_moe", 20240731,
        {"hidden_size": 80, "moe_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 2}, "NVFP4",
        "Qwen3-MoE, H 80, I 48, E 6, top-2, `nvfp4-pack-quantized`, attention and the dense layer too. `input_global_scale` of the"
        " down projections differs between experts.", (GLOBAL_NOTE,)),
    "compressed_nvfp4a16_mixtral": CompressedCase(
        "mixtral", 20240732,
        {"hidden_size": 48, "intermediate_size": 80, "num_local_experts": 4, "num_experts_per_tok": 2}, "NVFP4A16",
        "Mixtral, H 48, I 80, E 4, top-2, `nvfp4-pack-quantized`, weights only: there is no `input_global_scale`.",
        (GLOBAL_NOTE, "This llm-compressor splits transformers 5's fused experts and saves them as `block_sparse_moe.experts.e.{gate_proj,"
                      "up_proj,down_proj}`; checkpoints made with transformers 4 have `w1` (gate), `w3` (up), `w2` (down).")),
    "compressed_nvfp4_dormant_expert": CompressedCase(
        "qwen3_moe", 20240733,
        {"hidden_size": 48, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}, "NVFP4",
        "Qwen3-MoE, H 48, I 16, E 4, top-2, with a **dormant** expert 2: its weights are all zero, and tokens are routed to it.",
        (GLOBAL_NOTE, "For the zero expert llm-compressor writes codes 0, block scales 0.125 and `weight_global_scale` 1; also"
                      " `input_global_scale` 1 for the down projection, which never saw a value."), dormant=2),
}
