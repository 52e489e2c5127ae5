# SPDX-License-Identifier: Apache-2.0
"""Recompute every expected.safetensors from the checkpoint bytes alone, with numpy and ml_dtypes.

No producer's code is used here: the formats are decoded from their public definition. It proves that the folders are
what testdata/README.md says (names, nibble order, row order, globals, routing), independently of moekit.

    python testdata/generate/check_checkpoints.py testdata/checkpoints
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64, "U8": np.uint8, "I64": np.int64,
          "I8": np.int8, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E8M0": ml_dtypes.float8_e8m0fnu}
TOLERANCE = 1e-6  # of the largest |output|: the file holds F32, and F32 dequantisation rounds twice


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + o for o in entry["data_offsets"])
            tensors[name] = np.frombuffer(content[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def e2m1(packed: np.ndarray) -> np.ndarray:
    """Two codes in a byte, the low nibble is the even k."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def grouped(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return values * np.repeat(scales, values.shape[-1] // scales.shape[-1], axis=-1)


def e8m0(scales: np.ndarray) -> np.ndarray:
    return np.ldexp(1.0, scales.view(np.uint8).astype(np.int64) - 127)


def linear(tensors: dict, stem: str) -> np.ndarray:
    """[N,K] float64 of one projection, in whichever format it is stored."""
    if f"{stem}.weight_scale_inv" in tensors:  # E4M3 in blocks of 128 x 128
        codes, scales = tensors[f"{stem}.weight"].astype(np.float64), tensors[f"{stem}.weight_scale_inv"].astype(np.float64)
        return codes * scales.repeat(128, 0).repeat(128, 1)[: codes.shape[0], : codes.shape[1]]
    for scale_name in ("scale", "weight_scale"):  # DeepSeek-V4, Quark
        scale = tensors.get(f"{stem}.{scale_name}")
        if scale is not None and scale.dtype in (np.uint8, ml_dtypes.float8_e8m0fnu):
            return grouped(e2m1(tensors[f"{stem}.weight"].view(np.uint8)), e8m0(scale))
    if f"{stem}.weight_packed" in tensors:
        scale = tensors[f"{stem}.weight_scale"].astype(np.float64) / np.float64(tensors[f"{stem}.weight_global_scale"][0])
        return grouped(e2m1(tensors[f"{stem}.weight_packed"]), scale)
    if f"{stem}.weight_scale" in tensors:
        scale = tensors[f"{stem}.weight_scale"].astype(np.float64) * np.float64(tensors[f"{stem}.weight_scale_2"])
        return grouped(e2m1(tensors[f"{stem}.weight"]), scale)
    return tensors[f"{stem}.weight"].astype(np.float64)


def mxfp4(tensors: dict, stem: str) -> np.ndarray:
    """[E,N,K] float64 of a stacked gpt-oss tensor, quantised or not."""
    if stem in tensors:
        return tensors[stem].astype(np.float64).transpose(0, 2, 1)
    blocks, scales = tensors[f"{stem}_blocks"], tensors[f"{stem}_scales"]
    values = e2m1(blocks.reshape(*blocks.shape[:2], -1))
    return grouped(values, np.ldexp(1.0, scales.astype(np.int64) - 127))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def module(layer: int, model: str) -> str:
    if model == "deepseek_v4":
        return f"layers.{layer}.ffn."
    middle = {"nemotron_h": "mixer", "mixtral": "block_sparse_moe", "minimax_m2": "block_sparse_moe"}.get(model, "mlp")
    return f"{'backbone' if model == 'nemotron_h' else 'model'}.layers.{layer}.{middle}."


def expert_outputs(tensors: dict, layer: int, config: dict, experts: int, x: np.ndarray) -> np.ndarray:
    """[E,M,H]: what every expert makes of every token."""
    model, limit = config["model_type"], config.get("swiglu_limit", np.inf)
    if model == "gpt_oss":
        stem = f"model.layers.{layer}.mlp.experts."
        h = np.einsum("mk,enk->emn", x, mxfp4(tensors, f"{stem}gate_up_proj"))
        h += tensors[f"{stem}gate_up_proj_bias"].astype(np.float64)[:, None]
        gate, up = np.minimum(h[..., 0::2], 7.0), np.clip(h[..., 1::2], -7.0, 7.0)
        a = gate * sigmoid(1.702 * gate) * (up + 1.0)
        bias = tensors[f"{stem}down_proj_bias"].astype(np.float64)
        return np.einsum("emk,enk->emn", a, mxfp4(tensors, f"{stem}down_proj")) + bias[:, None]
    stem = module(layer, model) + "experts."
    names = ("w1", "w3", "w2") if f"{stem}0.w1.weight" in tensors else ("gate_proj", "up_proj", "down_proj")
    out = []
    for e in range(experts):
        gate_name, up_name, down_name = (f"{stem}{e}.{n}" for n in names)
        up = x @ linear(tensors, up_name).T
        if model == "nemotron_h":
            a = np.maximum(up, 0.0) ** 2
        else:
            gate, up = np.minimum(x @ linear(tensors, gate_name).T, limit), np.clip(up, -limit, limit)
            a = gate * sigmoid(gate) * up
        out.append(a @ linear(tensors, down_name).T)
    return np.stack(out)


def router(tensors: dict, layer: int, model: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weight, bias on the logits, bias on the selection)."""
    stem = module(layer, model)
    leaf = "router" if model == "gpt_oss" else "gate"
    weight = tensors[f"{stem}{leaf}.weight"].astype(np.float64)
    none = np.zeros(weight.shape[0])
    bias = tensors.get(f"{stem}router.bias", none).astype(np.float64)
    names = ("gate.e_score_correction_bias", "e_score_correction_bias", "gate.bias")
    correction = next((tensors[stem + name] for name in names if stem + name in tensors), none)
    return weight, bias, correction.astype(np.float64)


def select(logits: np.ndarray, correction: np.ndarray, config: dict, named: np.ndarray | None) -> dict[int, float]:
    """{expert: weight} of one token; `named`: its experts by the hash table."""
    top, model = config["num_experts_per_tok"], config["model_type"]
    softmax = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    score = sigmoid(logits) if "routed_scaling_factor" in config or model == "minimax_m2" else softmax
    if model == "deepseek_v4":
        score = np.sqrt(np.log1p(np.exp(logits)))
    choice = score + correction
    groups = choice.reshape(config.get("n_group") or 1, -1)
    if groups.shape[0] > 1:
        best = np.sort(groups, axis=1)[:, -2:].sum(axis=1)
        keep = np.argsort(-best, kind="stable")[: config["topk_group"]]
        choice = np.where(np.isin(np.arange(groups.shape[0]), keep)[:, None], groups, -np.inf).reshape(-1)
    ids = np.argsort(-choice, kind="stable")[:top] if named is None else named
    weights = score[ids]
    if config.get("norm_topk_prob") or model in ("mixtral", "gpt_oss", "minimax_m2"):  # softmax over the selected is the same thing
        weights = weights / weights.sum()
    return dict(zip(ids.tolist(), (weights * config.get("routed_scaling_factor", 1.0)).tolist()))


def check(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors.update(read_safetensors(path))
    want = read_safetensors(folder / "expected.safetensors")
    model, x = config["model_type"], want["hidden_states"].astype(np.float64)
    layer = int(re.search(r"layer \*\*(\d+)", (folder / "PROVENANCE.md").read_text())[1])
    weight, bias, correction = router(tensors, layer, model)
    outputs = expert_outputs(tensors, layer, config, weight.shape[0], x)
    table = tensors.get(module(layer, model) + "gate.tid2eid")
    logits = x @ weight.T + bias
    assert np.abs(logits - want["router_logits"]).max() < 1e-5 * np.abs(logits).max()
    worst = 0.0
    for m in range(x.shape[0]):
        listed = dict(zip(want["topk_ids"][m].tolist(), want["topk_weights"][m].tolist()))
        chosen = select(logits[m], correction, config, None if table is None else table[want["token_ids"][m]])
        assert chosen.keys() == listed.keys(), (folder.name, m, chosen, listed)
        assert all(abs(chosen[e] - listed[e]) < 1e-5 for e in chosen), (folder.name, m, chosen, listed)
        y = sum(w * outputs[e, m] for e, w in listed.items())
        worst = max(worst, np.abs(y - want["output"][m]).max() / np.abs(want["output"]).max())
    assert worst < TOLERANCE, (folder.name, worst)
    shown = [n for n in want if n.startswith("dequant.") and n.endswith(".weight")]
    for name in shown:
        exact = linear(tensors, name.removeprefix("dequant.").removesuffix(".weight"))
        assert (np.abs(exact - want[name]) <= np.abs(exact) * 2.0**-22).all(), name
    scales = [t.astype(np.float32) for n, t in tensors.items()
              if n.endswith("weight_scale") and "experts" in n and t.dtype != np.uint8]
    subnormal = sum(int(((s > 0) & (s < 2.0**-6)).sum()) for s in scales)
    zero = sum(int((s == 0).sum()) for s in scales)
    return f"{folder.name:32s} output within {worst:.1e} of its maximum; {len(shown)} tensors; {subnormal} subnormal and {zero} zero scales"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path)
    folders = sorted(f.parent for f in parser.parse_args().checkpoints.glob("*/expected.safetensors"))
    # Others have a reader of their own kind in the script that made them (int4_files.py, gguf_files.py) or are plain BF16.
    elsewhere = re.compile("gguf_|awq_|gptq_|compressed_(int4|mxfp4)_|step3p5|llama4|gemma4")
    folders = [folder for folder in folders if not elsewhere.match(folder.name)]
    assert len(folders) >= 19, "no checkpoint folders"
    for folder in folders:
        print(check(folder))
    print(f"{len(folders)} folders agree with their public definitions")


if __name__ == "__main__":
    main()
