# SPDX-License-Identifier: Apache-2.0
"""gpt-oss in MXFP4, in the layout of the published checkpoints, quantised by ModelOpt and read back by transformers."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from expected import expected_values, write_expected
from models import ARCHITECTURES, make_model, moe_block
from provenance import COMMON_NUMERICS, Facts
from quantised import SHOWN_EXPERT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor

GROUP = 32
SEED = 20240721
EXTENTS = {"hidden_size": 96, "intermediate_size": 160, "num_local_experts": 5, "num_experts_per_tok": 3}
# the section that the published gpt-oss configs carry
QUANTIZATION_CONFIG = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4",
}


def blocks_and_scales(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[E,K,N] as transformers holds it -> blocks [E,N,K/32,16] and scales [E,N,K/32], both U8."""
    rows = weight.detach().transpose(1, 2).contiguous()
    experts, outputs, inputs = rows.shape
    quantised, scale = MXFP4QTensor.quantize(rows, GROUP)
    shape = (experts, outputs, inputs // GROUP)
    return quantised._quantized_data.reshape(*shape, GROUP // 2).contiguous(), scale.reshape(shape).contiguous()


def write_checkpoint(model: torch.nn.Module, folder: Path) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tensors = load_file(Path(plain) / "model.safetensors")
        config = json.loads((Path(plain) / "config.json").read_text())
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales = blocks_and_scales(tensors.pop(name))
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config["quantization_config"] = QUANTIZATION_CONFIG
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return tensors


def make(folder: Path) -> Facts:
    model = make_model("gpt_oss", SEED, **EXTENTS)
    tensors = write_checkpoint(model, folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, experts_implementation="eager").eval()
    block = moe_block(loaded, "gpt_oss")
    prefix = f"model.layers.{ARCHITECTURES['gpt_oss'].layer}.mlp.experts."
    values = expected_values(block, block, "gpt_oss", EXTENTS["hidden_size"], SEED + 1)
    for name in ("gate_up_proj", "down_proj"):
        packed = tensors[f"{prefix}{name}_blocks"], tensors[f"{prefix}{name}_scales"]
        wide = convert_moe_packed_tensors(*packed, dtype=torch.float32)
        assert torch.equal(wide, getattr(block.experts, name).float())  # exact in BF16 too
        values[f"dequant.{prefix}{name}.{SHOWN_EXPERT}"] = wide[SHOWN_EXPERT].to(torch.bfloat16)
    write_expected(folder, values)
    return Facts(
        about="gpt-oss MXFP4, H 96, I 160 (odd numbers of 32-groups), E 5, top-3. `gate_up_proj_blocks` [E,2I,H/32,16] with rows"
              " g0, u0, g1, u1, …; `down_proj_blocks` [E,H,I/32,16]; biases; swiglu limit 7 clips some values.",
        tool="transformers writes the BF16 model; ModelOpt's `MXFP4QTensor.quantize` quantises each expert tensor; the blocks, scales"
             " and the `quantization_config` section are put in the published names and layout by the script. transformers'"
             " `from_pretrained` then reads the folder as it reads the published ones (it dequantises to BF16 on a CPU)",
        layer=ARCHITECTURES["gpt_oss"].layer, seed=SEED,
        numerics=COMMON_NUMERICS + [
            "`dequant.NAME.e` BF16: transformers' `convert_moe_packed_tensors` of expert e, **transposed** [K,N] as that function"
            " returns it, exact (the script asserts that F32 and BF16 agree)."],
        notes=["transformers' own quantiser needs Triton kernels that are fetched at run time and a GPU; it was not used.",
               "ModelOpt chooses the scale 2^ceil(log2(amax/6)); a group of zeros gets byte 0 and codes 8 (minus zero)."],
        packages=("nvidia-modelopt", "torch", "transformers", "safetensors"))


CASES = {"gpt_oss_mxfp4": make}
