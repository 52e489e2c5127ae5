# SPDX-License-Identifier: Apache-2.0
"""FP8 blocks and DeepSeek-V4's own files, from their public definition and read back by transformers; Quark's MXFP4."""

from __future__ import annotations

import json
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from expected import expected_values, write_expected
from models import ARCHITECTURES, make_model, moe_block
from provenance import COMMON_NUMERICS, Facts
from quantised import blocks_with, dequantised_experts, shown

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
BLOCK = 128
FP8_SECTION = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}


def fp8_blocks(weight: torch.Tensor, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes [N,K] and one F32 multiplier for each 128 x 128 block: amax / 448, V4 rounds it up to a power of two."""
    weight = weight.float()
    rows, cols = ((extent + BLOCK - 1) // BLOCK for extent in weight.shape)
    scales = torch.ones(rows, cols)
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for r in range(rows):
        for c in range(cols):
            at = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
            scale = weight[at].abs().max() / 448
            scales[r, c] = torch.exp2(torch.ceil(torch.log2(scale))) if power_of_two else scale
            codes[at] = (weight[at] / scales[r, c]).to(torch.float8_e4m3fn)
    return codes, scales


def fp8_values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    wide = scales.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return codes.float() * wide[: codes.shape[0], : codes.shape[1]]


def fp8_block128(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    return fp8_values(tensors[f"{stem}.weight"], tensors[f"{stem}.weight_scale_inv"])


def mxfp4_values(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Low nibble first, times 2^(byte - 127): exact in F32."""
    packed = packed.view(torch.uint8)
    codes = E2M1[torch.stack([packed & 15, packed >> 4], -1).flatten(1).long()]
    exponents = scales.view(torch.uint8).int() - 127
    return codes * torch.ldexp(torch.ones(exponents.shape), exponents).repeat_interleave(32, 1)


def deepseek_v4(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    return mxfp4_values(tensors[f"{stem}.weight"], tensors[f"{stem}.scale"])


def quark(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    return mxfp4_values(tensors[f"{stem}.weight"], tensors[f"{stem}.weight_scale"])


def saved(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict]:
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        return load_file(Path(plain) / "model.safetensors"), json.loads((Path(plain) / "config.json").read_text())


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict) -> None:
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_fp8(model: torch.nn.Module, folder: Path) -> None:
    tensors, config = saved(model)
    for name in [n for n in tensors if ".experts." in n]:
        tensors[name], tensors[f"{name}_scale_inv"] = fp8_blocks(tensors[name], False)
    config["quantization_config"] = {**FP8_SECTION, "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head", "self_attn"]}
    write(folder, tensors, config)


# transformers' conversion_mapping.py of deepseek_v4, read backwards
V4_NAMES = (("model.embed_tokens.", "embed."), ("model.norm.", "norm."), ("lm_head.", "head."), ("model.layers.", "layers."),
            (".self_attn.", ".attn."), (".mlp.", ".ffn."), (".input_layernorm.", ".attn_norm."),
            (".post_attention_layernorm.", ".ffn_norm."), (".gate.e_score_correction_bias", ".gate.bias"),
            (".shared_experts.gate_proj.", ".shared_experts.w1."), (".shared_experts.up_proj.", ".shared_experts.w3."),
            (".shared_experts.down_proj.", ".shared_experts.w2."), (".attn_hc.", ".hc_attn_"), (".ffn_hc.", ".hc_ffn_"),
            ("model.hc_head.hc_", "hc_head_"), (".sinks", ".attn_sink"), (".q_a_proj.", ".wq_a."), (".q_b_proj.", ".wq_b."),
            (".kv_proj.", ".wkv."), (".o_a_proj.", ".wo_a."), (".o_b_proj.", ".wo_b."), (".q_a_norm.", ".q_norm."))


def write_v4(model: torch.nn.Module, folder: Path) -> None:
    stored, config = saved(model)
    tensors = {}
    for name, value in stored.items():
        for transformers_name, file_name in V4_NAMES:
            name = name.replace(transformers_name, file_name)
        if ".ffn.experts." in name:
            quantised, scale = MXFP4QTensor.quantize(value, 32)
            rows = value.shape[0]
            tensors[name] = quantised._quantized_data.reshape(rows, -1).view(torch.int8)
            tensors[name.replace(".weight", ".scale")] = scale.reshape(rows, -1).view(torch.float8_e8m0fnu)
        elif ".shared_experts." in name:
            tensors[name], scales = fp8_blocks(value, True)
            tensors[name.replace(".weight", ".scale")] = scales.to(torch.float8_e8m0fnu)
        else:
            tensors[name] = value.float() if name.endswith(".gate.bias") else value
    config["quantization_config"] = {**FP8_SECTION, "scale_fmt": "ue8m0"}
    config.update(expert_dtype="fp4", topk_method="noaux_tc", num_hash_layers=config["mlp_layer_types"].count("hash_moe"))
    write(folder, tensors, config)


def write_quark(model: torch.nn.Module, folder: Path) -> None:
    from quark.torch import ModelQuantizer  # compiles an extension when imported
    from quark.torch.quantization.config.config import OCP_MXFP4Spec, QConfig, QLayerConfig

    with tempfile.TemporaryDirectory() as source:
        model.save_pretrained(source)
        spec = OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec()
        config = QConfig(global_quant_config=QLayerConfig(weight=spec), exclude=["lm_head", "*self_attn*", "*mlp.gate", "*layers.0.mlp*"])
        ModelQuantizer(config).direct_quantize_checkpoint(source, str(folder), device="cpu")


@dataclass(frozen=True)
class BlockCase:
    architecture: str
    seed: int
    extents: dict
    write: object
    dequantise: object
    tool: str
    about: str
    read_back: bool  # transformers reads the folder, and its dequantised experts are compared with the script's
    notes: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> Facts:
        base = make_model(self.architecture, self.seed, **self.extents)
        self.write(base, folder)
        block = moe_block(base, self.architecture)
        weights = dequantised_experts(folder, self.architecture, block.experts.down_proj.shape[0], self.dequantise)
        narrow, exact = blocks_with(block, self.architecture, weights)
        if self.read_back:
            self.compare_with_transformers(folder, narrow)
        values = expected_values(narrow, exact, self.architecture, base.config.hidden_size, self.seed + 1)
        write_expected(folder, {**values, **shown(weights, self.architecture)})
        checked = (" transformers' `from_pretrained` reads the folder and dequantises to BF16; the script asserts that this is these"
                   " values rounded to BF16." if self.read_back else "")
        return Facts(about=self.about, tool=self.tool, layer=ARCHITECTURES[self.architecture].layer, seed=self.seed,
                     numerics=COMMON_NUMERICS + [
                         "`dequant.NAME.weight` [N,K] F32: expert 1 by the script, from the format's public definition, one F32 rounding"
                         f" at most.{checked} `output` and `output_bf16` use these values of **all** experts; activations are not"
                         " quantised."] + (["`token_ids` [M] I64: the input of the hash table `tid2eid`."] if self.architecture.endswith("_hash") else []),
                     notes=list(self.notes), packages=("amd-quark", "nvidia-modelopt", "torch", "transformers", "safetensors"))

    def compare_with_transformers(self, folder: Path, narrow: torch.nn.Module) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, experts_implementation="eager").eval()
        experts = moe_block(loaded, self.architecture).experts
        for name in ("gate_up_proj", "down_proj"):
            have, want = getattr(experts, name), getattr(narrow.experts, name)
            assert torch.equal(have.to(torch.bfloat16), want), f"{name} differs by {(have.float() - want.float()).abs().max():g}"


V4_EXTENTS = {"hidden_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 1.5}
V4_TOOL = ("transformers writes the BF16 model; the script renames its tensors to those of DeepSeek's own files (transformers'"
           " conversion_mapping, backwards), ModelOpt's `MXFP4QTensor.quantize` quantises the routed experts, the script the shared"
           " expert to FP8 blocks with E8M0 scales. There is no public exporter of these files")
CASES = {
    "minimax_m2_fp8_block128": BlockCase(
        "minimax_m2", 20240781, {"hidden_size": 256, "intermediate_size": 16, "num_attention_heads": 1, "head_dim": 8, "vocab_size": 24, "tie_word_embeddings": True,
                                   "num_local_experts": 3, "num_experts_per_tok": 2},
        write_fp8, fp8_block128,
        "transformers writes the BF16 model, the script quantises the routed experts by the format's public definition (transformers'"
        " own quantiser needs a GPU)",
        "MiniMax-M2 as it is published: FP8 in blocks of 128 x 128, `weight` E4M3 and `weight_scale_inv` F32, H 256, I 16 (short blocks),"
        " E 3, top-2; everything else BF16.", True),
    "deepseek_v4_mxfp4": BlockCase(
        "deepseek_v4", 20240782, V4_EXTENTS, write_v4, deepseek_v4, V4_TOOL,
        "DeepSeek-V4's own files: `layers.L.ffn.experts.e.{w1,w2,w3}.weight` I8 with two FP4 codes a byte, `.scale` E8M0 per 32;"
        " H 64, I 32, E 4, top-2, sqrt(softplus) scores, `ffn.gate.bias` corrects the selection, scaling 1.5, `swiglu_limit` 1.5 clips"
        " some values. Layer 0 is hash-routed.", True),
    "deepseek_v4_hash_mxfp4": BlockCase(
        "deepseek_v4_hash", 20240783, V4_EXTENTS, write_v4, deepseek_v4, V4_TOOL,
        "DeepSeek-V4's own files, one hash-routed layer: `ffn.gate.tid2eid` [vocabulary, top-k] names the experts of a token,"
        " sqrt(softplus) of the logits their weights; else as deepseek_v4_mxfp4.", True),
    "quark_mxfp4_qwen3_moe": BlockCase(
        "qwen3_moe", 20240784, {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
        write_quark, quark,
        "AMD Quark's `ModelQuantizer.direct_quantize_checkpoint` with `OCP_MXFP4Spec` on the weights, on the CPU",
        "Qwen3-MoE, H 64, I 32, E 4, top-2, Quark MXFP4: `weight` U8 [N,K/2] and `weight_scale` U8 [N,K/32], no global; only the routed"
        " experts of layer 1 are quantised.", False),
}
