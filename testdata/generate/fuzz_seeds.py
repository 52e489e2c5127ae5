# SPDX-License-Identifier: Apache-2.0
"""Seeds of the fuzz targets from the committed checkpoints, and small GGUF files by the gguf package.

    python testdata/generate/fuzz_seeds.py testdata/checkpoints testdata/fuzz
"""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

BITS = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I8": 8, "U8": 8, "F8_E4M3": 8, "F8_E8M0": 8}
EXTENT = 64  # of the files that folder_fuzz reads configurations for


def tensors_of(folder: Path) -> dict:
    """name -> (dtype, shape, bytes)"""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        raw = path.read_bytes()
        start = 8 + struct.unpack("<Q", raw[:8])[0]
        for name, entry in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], raw[start + begin : start + end])
    return tensors


def layer_of(folder: Path) -> str:
    return re.search(r"layer \*\*(\d+)", (folder / "PROVENANCE.md").read_text())[1]


def safetensors_seed(folder: Path, whole: bool = False, suffix: str = "") -> bytes:
    """One MoE layer with its first expert alone. Not whole: 0x01, the data's size, the header's text (the target adds zeros);
    whole: 0x00 and the file. A suffix stands for weight_scale_inv."""
    layer = re.compile(rf"\.?layers\.{layer_of(folder)}\.")
    kept, data = {}, b""
    for name, (dtype, shape, raw) in sorted(tensors_of(folder).items()):
        stacked = re.search(r"experts\.(gate_up|down)|moe\.(gate|up|down)_proj", name)
        routed = re.search(r"(?<!shared_)experts\.", name) or stacked
        router = re.search(r"(gate|router)\.|e_score_correction_bias|router_bias", name) and "shared" not in name
        if not layer.search(name) or not (routed or router) or re.search(r"experts\.[1-9]", name):
            continue
        if not whole and name.endswith(("g_idx", "weight_shape")):
            continue  # zeros would contradict the rest
        shape = list(shape)
        if (stacked or router) and "tid2eid" not in name and not name.endswith("router.scale"):
            shape[0] = 1
        if "tid2eid" in name:
            shape = [3, 1]
        size = BITS[dtype] // 8 * int(np.prod(shape))
        if suffix:
            name = name.replace("weight_scale_inv", suffix)
        kept[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += raw[:size]
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    assert 0 < len(data) < 65536 - len(text), (folder.name, len(data))
    return b"\x00" + struct.pack("<Q", len(text)) + text + data if whole else b"\x01" + struct.pack("<H", len(data)) + text


def folder_seed(folder: Path) -> bytes:
    """config.json and hf_quant_config.json with the extents of the files that folder_fuzz reads."""
    config = json.loads((folder / "config.json").read_text())
    values = {"hidden_size": EXTENT, "moe_intermediate_size": EXTENT, "num_experts": 1, "num_local_experts": 1,
              "n_routed_experts": 1, "num_experts_per_tok": 1, "top_k_experts": 1, "n_group": 1, "topk_group": 1}
    for part in (config, config.get("text_config", {})):
        part.update({key: value for key, value in values.items() if key in part})
        if "moe_intermediate_size" not in part and "intermediate_size" in part:
            part["intermediate_size"] = EXTENT
        for key in ("rope_parameters", "layer_types", "vision_config", "per_layer_config", "sparse_attention_config"):
            part.pop(key, None)
    text = json.dumps(config, separators=(",", ":")).encode()
    other = folder / "hf_quant_config.json"
    return text + (b"\x1e" + json.dumps(json.loads(other.read_text()), separators=(",", ":")).encode() if other.exists() else b"")


def gguf_seed(path: Path, arch: str, experts: Type, router: Type = Type.F32, clamps=(), hash_rows: int = 0, expert_scale=False) -> None:
    extent = 8 if experts == Type.BF16 else EXTENT
    writer = gguf.GGUFWriter(path, arch)
    writer.add_embedding_length(extent)
    writer.add_expert_feed_forward_length(extent)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(True)
    if clamps:
        writer.add_array(f"{arch}.swiglu_clamp_exp", list(clamps))

    def add(name: str, kind: Type, *shape: int) -> None:
        elems, bytes_ = gguf.GGML_QUANT_SIZES[kind]
        rows = np.zeros((*shape[:-1], shape[-1] // elems * bytes_), np.uint8)
        if kind == Type.F32:
            rows = np.zeros(shape, np.float32)
        if kind == Type.I32:
            rows = np.zeros(shape, np.int32)
        writer.add_tensor(name, rows, raw_dtype=kind)

    for name in ("gate", "up", "down"):
        add(f"blk.0.ffn_{name}_exps.weight", experts, 2, extent, extent)
    add("blk.0.ffn_gate_inp.weight", router, 2, extent)
    if hash_rows:
        add("blk.0.ffn_gate_tid2eid.weight", Type.I32, hash_rows, 1)
    if expert_scale:
        add("blk.0.ffn_down_exps.scale", Type.F32, 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    checkpoints, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name in ("quark_mxfp4_qwen3_moe", "deepseek_v4_mxfp4", "deepseek_v4_hash_mxfp4", "minimax_m2_fp8_block128", "awq_qwen3_moe",
                 "gptq_qwen3_moe", "compressed_int4_qwen3_moe", "compressed_mxfp4_qwen3_moe", "step3p5_bf16", "llama4_bf16",
                 "gemma4_bf16"):
        (out / "safetensors_fuzz" / name).write_bytes(safetensors_seed(checkpoints / name))
    for name in ("gptq_qwen3_moe", "compressed_int4_qwen3_moe", "compressed_nvfp4_qwen3_moe"):
        (out / "safetensors_fuzz" / f"whole_{name}").write_bytes(safetensors_seed(checkpoints / name, whole=True))
    for name, suffix in (("deepseek_v4_fp8", "scale"), ("compressed_fp8_block", "weight_scale")):
        (out / "safetensors_fuzz" / name).write_bytes(safetensors_seed(checkpoints / "minimax_m2_fp8_block128", suffix=suffix))
    for name in ("quark_mxfp4_qwen3_moe", "deepseek_v4_mxfp4", "minimax_m2_fp8_block128", "awq_qwen3_moe", "gptq_qwen3_moe",
                 "compressed_int4_qwen3_moe", "compressed_mxfp4_qwen3_moe", "compressed_nvfp4a16_mixtral",
                 "modelopt_w4a16_nvfp4_glm4_moe", "gpt_oss_mxfp4", "gpt_oss_bf16", "step3p5_bf16", "llama4_bf16", "gemma4_bf16"):
        (out / "folder_fuzz" / f"fits_{name}").write_bytes(folder_seed(checkpoints / name))
    gguf_seed(out / "gguf_fuzz" / "step35_clamps", "step35", Type.BF16, clamps=(7.0, 0.0))
    gguf_seed(out / "gguf_fuzz" / "deepseek4_hash", "deepseek4", Type.MXFP4, clamps=(10.0,), hash_rows=3)
    gguf_seed(out / "gguf_fuzz" / "gemma4_expert_scale", "gemma4", Type.BF16, expert_scale=True)
    gguf_seed(out / "gguf_fuzz" / "q8_0_router", "glm4moe", Type.MXFP4, router=Type.Q8_0)


if __name__ == "__main__":
    main()
