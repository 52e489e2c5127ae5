# SPDX-License-Identifier: Apache-2.0
"""AWQ and GPTQ checkpoints written by AutoRound, pack-quantized int4 and MXFP4 by llm-compressor: venv-llmcompressor."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from auto_round import AutoRound
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from expected import expected_values, write_expected
from models import ARCHITECTURES, make_model, moe_block
from provenance import COMMON_NUMERICS, Facts
from quantised import blocks_with, dequantised_experts, shown

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def nibbles(words: torch.Tensor, dim: int, order=range(8)) -> torch.Tensor:
    """i32 words -> codes, eight along `dim`."""
    parts = torch.empty((*words.shape, 8), dtype=torch.int32)
    for position, column in enumerate(order):
        parts[..., column] = (words >> (4 * position)) & 15
    return parts.flatten(1) if dim == 1 else parts.permute(0, 2, 1).flatten(0, 1)


def awq(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    """(q - z) * s in F32, from the public definition of AutoAWQ's gemm layout."""
    codes, zeros = (nibbles(tensors[f"{stem}.{n}"], 1, AWQ_ORDER) for n in ("qweight", "qzeros"))
    scales = tensors[f"{stem}.scales"].float()
    group = codes.shape[0] // scales.shape[0]
    return ((codes - zeros.repeat_interleave(group, 0)) * scales.repeat_interleave(group, 0)).T.contiguous()


def gptq(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    """(q - (stored zero + 1)) * s in F32, from the public definition of GPTQ checkpoints, version 1."""
    codes = nibbles(tensors[f"{stem}.qweight"], 0)
    zeros = nibbles(tensors[f"{stem}.qzeros"], 1) + 1
    index = tensors[f"{stem}.g_idx"].long()
    return ((codes - zeros[index]) * tensors[f"{stem}.scales"].float()[index]).T.contiguous()


def pack_quantized(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    """compressed-tensors' own unpack_from_int32, then (q - z) * s in F32."""
    rows, cols = tensors[f"{stem}.weight_shape"].tolist()
    codes = unpack_from_int32(tensors[f"{stem}.weight_packed"], 4, torch.Size([rows, cols])).float()
    scales = tensors[f"{stem}.weight_scale"].float()
    group = cols // scales.shape[1]
    if f"{stem}.weight_zero_point" in tensors:
        zeros = unpack_from_int32(tensors[f"{stem}.weight_zero_point"], 4, torch.Size(scales.shape), packed_dim=0)
        codes = codes - zeros.float().repeat_interleave(group, 1)
    return codes * scales.repeat_interleave(group, 1)


def mxfp4(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    """compressed-tensors' own unpack_fp4_from_uint8 times 2^(byte - 127)."""
    packed = tensors[f"{stem}.weight_packed"]
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
    scales = torch.ldexp(torch.ones(1), tensors[f"{stem}.weight_scale"].view(torch.uint8).int() - 127)
    return codes * scales.repeat_interleave(codes.shape[1] // scales.shape[1], 1)


def tokenizer() -> PreTrainedTokenizerFast:
    words = tokenizer_models.WordLevel({f"t{i}": i for i in range(32)}, unk_token="t0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="t0", pad_token="t0")


def auto_round(base: torch.nn.Module, folder: Path, kind: str, symmetric: bool) -> None:
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as out:
        base.save_pretrained(source)
        tokenizer().save_pretrained(source)
        AutoRound(source, bits=4, group_size=32, sym=symmetric, iters=0, device_map="cpu",
                  disable_opt_rtn=True).quantize_and_save(out, format=kind)
        (written,) = Path(out).rglob("model.safetensors")
        for name in ("model.safetensors", "config.json", "quantization_config.json", "generation_config.json"):
            if (written.parent / name).exists():
                shutil.copy(written.parent / name, folder / name)
    # the folder's name of the run stands in the exported configuration of some versions
    config = json.loads((folder / "config.json").read_text())
    config.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def llm_compressor(base: torch.nn.Module, folder: Path, scheme: dict) -> None:
    with tempfile.TemporaryDirectory() as source:
        base.save_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
        oneshot(model=model, recipe=QuantizationModifier(ignore=["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*",
                                                                 "re:.*layers.0.mlp.*"], **scheme))
        model.save_pretrained(folder, save_compressed=True)
    (folder / "recipe.yaml").unlink(missing_ok=True)


@dataclass(frozen=True)
class Int4Case:
    seed: int
    extents: dict
    write: object
    dequantise: object
    tool: str
    about: str
    own: bool  # dequantisation by the producer's own code
    notes: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> Facts:
        base = make_model("qwen3_moe", self.seed, **self.extents)
        self.write(base, folder)
        block = moe_block(base, "qwen3_moe")
        weights = dequantised_experts(folder, "qwen3_moe", block.experts.down_proj.shape[0], self.dequantise)
        narrow, exact = blocks_with(block, "qwen3_moe", weights)
        values = expected_values(narrow, exact, "qwen3_moe", base.config.hidden_size, self.seed + 1)
        write_expected(folder, {**values, **shown(weights, "qwen3_moe")})
        who = "the producer's own unpacking" if self.own else "the script, from the format's public definition"
        return Facts(about=self.about, tool=self.tool, layer=ARCHITECTURES["qwen3_moe"].layer, seed=self.seed,
                     numerics=COMMON_NUMERICS + [
                         f"`dequant.NAME.weight` [N,K] F32: expert 1 by {who}, at most two F32 roundings. `output` and"
                         " `output_bf16` use these values of **all** experts; activations are not quantised."],
                     notes=list(self.notes),
                     packages=("auto-round", "llmcompressor", "compressed-tensors", "torch", "transformers", "safetensors"))


EXTENTS = {"hidden_size": 64, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2}
AR_TOOL = "AutoRound's `quantize_and_save(format=\"{}\")`, 4 bits, groups of 32, `iters=0` (round to nearest), on the CPU"
GROUP = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}
CASES = {
    "awq_qwen3_moe": Int4Case(
        20240761, EXTENTS, lambda m, f: auto_round(m, f, "auto_awq", False), awq, AR_TOOL.format("auto_awq"),
        "Qwen3-MoE, H 64, I 96, E 4, top-2, AWQ (gemm), asymmetric: `qweight` [K,N/8], `qzeros`, F16 `scales`.", False,
        ("Layer 0 is dense and stays unquantised, as do the attention's k and v: a mixed-precision folder.",)),
    "gptq_qwen3_moe": Int4Case(
        20240762, EXTENTS, lambda m, f: auto_round(m, f, "auto_gptq", False), gptq, AR_TOOL.format("auto_gptq"),
        "Qwen3-MoE, H 64, I 96, E 4, top-2, GPTQ version 1, asymmetric: `qweight` [K/8,N], `qzeros` less one, F16 `scales`, a `g_idx`"
        " that permutes nothing.", False),
    "compressed_int4_qwen3_moe": Int4Case(
        20240763, EXTENTS, lambda m, f: llm_compressor(m, f, {"config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {**GROUP, "symmetric": False}}}}), pack_quantized,
        "llm-compressor's `oneshot` with `QuantizationModifier`, 4 bits, groups of 32, asymmetric, and `save_pretrained(save_compressed=True)`",
        "Qwen3-MoE, H 64, I 96, E 4, top-2, `pack-quantized`, asymmetric: `weight_packed` [N,K/8], `weight_zero_point` packed along N;"
        " only the routed experts of layer 1 are quantised.", True),
    "compressed_mxfp4_qwen3_moe": Int4Case(
        20240764, EXTENTS, lambda m, f: llm_compressor(m, f, {"targets": "Linear", "scheme": "MXFP4A16"}), mxfp4,
        "llm-compressor's `oneshot` with `QuantizationModifier(scheme=\"MXFP4A16\")` and `save_pretrained(save_compressed=True)`",
        "Qwen3-MoE, H 64, I 96, E 4, top-2, `mxfp4-pack-quantized`: `weight_packed` U8 and `weight_scale` E8M0 bytes per 32, no global;"
        " only the routed experts of layer 1 are quantised.", True),
}
