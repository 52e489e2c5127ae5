// SPDX-License-Identifier: Apache-2.0
// Folders as they come, whole and otherwise.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

#include "checkpoint/composed_files_test.h"
#include "checkpoint/composed_gguf_test.h"
#include "checkpoint/temporary_folder_test.h"

namespace moekit::checkpoint {
namespace {

class Folder : public TemporaryFolder {
 protected:
  void expect_refused(StatusCode code, const std::vector<std::string>& words) const {
    const Result<Checkpoint> opened = Checkpoint::open(folder_);
    EXPECT_EQ(opened.status().code(), code) << opened.status().to_string();
    for (const std::string& word : words) {
      EXPECT_NE(opened.status().message().find(word), std::string_view::npos)
          << word << " not in: " << opened.status().message();
    }
  }

  const std::string a_ = compose_zeros({{"a", "F32", {2}}});
  const std::string b_ = compose_zeros({{"b", "F32", {2}}});
};

std::string index_of(const std::string& weight_map) {
  return R"({"metadata":{"total_size":16},"weight_map":)" + weight_map + "}";
}

TEST_F(Folder, shards_of_an_index_are_joined) {
  write("one.safetensors", a_);
  write("two.safetensors", b_);
  write("stray.safetensors", "not even a header");
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"},"author":"x"})");
  const Result<Checkpoint> opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  EXPECT_EQ(opened->summary().num_files, 2);
  EXPECT_EQ(opened->find("b")->file, "two.safetensors");
  EXPECT_EQ(opened->find("c"), nullptr);
  EXPECT_EQ(opened->summary().ignored_fields,
            (std::vector<std::string>{"model.safetensors.index.json 'author'"}));
}

TEST_F(Folder, the_index_decides_between_two_copies) {
  write("one.safetensors", a_);
  write("two.safetensors", compose_zeros({{"a", "F32", {2}}, {"b", "F32", {2}}}));
  write("model.safetensors.index.json",
        index_of(R"({"a":"one.safetensors","b":"two.safetensors"})"));
  const Result<Checkpoint> opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  EXPECT_EQ(opened->find("a")->file, "one.safetensors");
}

TEST_F(Folder, wrong_indexes_are_refused) {
  write("one.safetensors", a_);
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[]", "no weight_map"},
      {"{}", "no weight_map"},
      {"{", "syntax error"},
      {index_of("[]"), "weight_map is array, expected an object"},
      {index_of(R"({"a":1})"), "weight_map 'a' is number, expected a string"},
      {R"({"weight_map":{"a":"one.safetensors"},"metadata":[]})", "metadata is array, expected an"},
      {index_of(R"({"a":"../one.safetensors"})"), "'../one.safetensors' is not a plain file name"},
      {index_of(R"({"a":"/etc/passwd"})"), "is not a plain file name"},
      {index_of(R"({"a":".."})"), "is not a plain file name"},
      {index_of(R"({"a":""})"), "is not a plain file name"},
      {index_of(R"({"a":"x\u0000y"})"), "is not a plain file name"},
      {index_of(R"({"a":"two.safetensors"})"), "missing shard 'two.safetensors'"},
      {index_of(R"({"a":"one.safetensors","b":"one.safetensors"})"), "tensor 'b' is not in"},
      {index_of(R"({"a":"one.safetensors","a":"one.safetensors"})"), "duplicate key 'a'"},
  };
  for (const auto& [text, words] : cases) {
    write("model.safetensors.index.json", text);
    expect_refused(StatusCode::kInvalidArgument, {words});
  }
}

TEST_F(Folder, without_an_index_the_model_files_are_taken) {
  expect_refused(StatusCode::kInvalidArgument, {"holds 0 .safetensors files"});
  write("other.safetensors", b_);
  EXPECT_NE(Checkpoint::open(folder_)->find("b"), nullptr);
  write("another.safetensors", b_);
  expect_refused(StatusCode::kInvalidArgument, {"holds 2 .safetensors files"});
  write("model-1.safetensors", a_);
  write("model-2.safetensors", b_);
  EXPECT_EQ(Checkpoint::open(folder_)->summary().num_tensors, 2);
  write("model-3.safetensors", b_);
  expect_refused(StatusCode::kInvalidArgument,
                 {"tensor 'b' lies in model-2.safetensors and in model-3.safetensors"});
  write("model.safetensors", a_);
  EXPECT_EQ(Checkpoint::open(folder_)->summary().num_tensors, 1);
  write("model.safetensors", a_.substr(0, a_.size() - 1));
  expect_refused(StatusCode::kInvalidArgument, {"model.safetensors", "do not lie in the 7 bytes"});
}

TEST_F(Folder, a_part_that_is_missing_without_an_index_is_named) {
  write("model-00001-of-00002.safetensors", a_);
  expect_refused(StatusCode::kInvalidArgument,
                 {"missing shard 'model-00002-of-00002.safetensors'", folder_});
  write("model-00002-of-00002.safetensors", compose_zeros({{"b", "F32", {2}}}));
  EXPECT_EQ(Checkpoint::open(folder_)->summary().num_tensors, 2);
  write("model-00003-of-00003.safetensors", compose_zeros({{"c", "F32", {2}}}));
  expect_refused(StatusCode::kInvalidArgument,
                 {"missing shard 'model-00001-of-00003.safetensors'"});
}

TEST_F(Folder, a_split_gguf_is_one_checkpoint_whichever_part_is_named) {
  write("m-00002-of-00002.gguf", compose_gguf({{"b", 0, {8}, 0}}, 32));
  EXPECT_FALSE(Checkpoint::open(folder_).has_value());
  write("m-00001-of-00002.gguf", compose_gguf({{"a", 0, {8}, 0}}, 32));
  for (const std::string& path :
       {folder_, folder_ + "/m-00001-of-00002.gguf", folder_ + "/m-00002-of-00002.gguf"}) {
    const Result<Checkpoint> opened = Checkpoint::open(path);
    ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
    EXPECT_EQ(opened->summary().num_tensors, 2) << path;
  }
  write("m-00000-of-00000.gguf", compose_gguf({{"z", 0, {8}, 0}}, 32));
  EXPECT_EQ(Checkpoint::open(folder_ + "/m-00000-of-00000.gguf")->summary().num_tensors, 1);
}

TEST_F(Folder, wrong_configurations_are_refused_with_field_and_value) {
  write("model.safetensors", a_);
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "config.json: syntax error"},
      {"[]", "config.json is not a JSON object"},
      {R"({"hidden_size":"many"})", "config.json hidden_size is 'many', expected an integer"},
      {R"({"hidden_size":-8})", "config.json hidden_size is -8, expected an integer"},
      {R"({"hidden_size":8.5})", "hidden_size is 8.5"},
      {R"({"num_experts":18446744073709551615})", "num_experts is 18446744073709551615"},
      {R"({"num_experts_per_tok":[2]})", "num_experts_per_tok is an array, expected an integer"},
      {R"({"norm_topk_prob":1})", "norm_topk_prob is 1, expected true or false"},
      {R"({"routed_scaling_factor":1e300})", "routed_scaling_factor is 1e+300"},
      {R"({"hidden_act":5})", "hidden_act is 5, expected a string"},
      {R"({"architectures":"X"})", "architectures is 'X', expected an array"},
      {R"({"text_config":{"hidden_size":true}})", "text_config.hidden_size is true"},
      {R"({"a":1,"a":2})", "duplicate key 'a'"},
      // A known key on the way to others.
      {R"({"quantization_config":[]})", "quantization_config is an array, expected an object"},
      {R"({"quantization_config":"fp8"})", "quantization_config is 'fp8', expected an object"},
      {R"({"quantization_config":NaN})", "quantization_config is 'NaN', expected an object"},
      {R"({"text_config":[]})", "text_config is an array, expected an object"},
      {R"({"text_config":{"quantization_config":7}})", "text_config.quantization_config is 7"},
      {R"({"quantization_config":{"config_groups":[]}})", "config_groups is an array, expected an"},
      {R"({"quantization_config":{"config_groups":{"g":3}}})", "config_groups.g is 3, expected an"},
      {R"({"quantization_config":{"config_groups":{"g":{"weights":[]}}}})",
       "g.weights is an array"},
      {R"({"quantization_config":{"quantized_layers":true}})", "quantized_layers is true"},
      {R"({"quantization_config":{"ignore":{}}})", "ignore is an object, expected an array of str"},
  };
  for (const auto& [text, words] : cases) {
    write("config.json", text);
    expect_refused(StatusCode::kInvalidArgument, {words});
  }
  write("config.json", "{}");
  for (const auto& [text, words] :
       {std::pair(R"({"quantization":{"quant_algo":4}})",
                  "hf_quant_config.json quantization.quant_algo is 4"),
        std::pair(R"({"quantization":[]})", "quantization is an array"),
        std::pair(R"({"producer":"x"})", "producer is 'x', expected an")}) {
    write("hf_quant_config.json", text);
    expect_refused(StatusCode::kInvalidArgument, {words});
  }
  write("hf_quant_config.json", R"({"quantization":null,"producer":null})");
  write("config.json", R"({"quantization_config":null,"text_config":null})");
  EXPECT_TRUE(Checkpoint::open(folder_).has_value());
}

TEST_F(Folder, unknown_fields_and_python_literals_are_ignored_and_listed) {
  write("model.safetensors", a_);
  write("config.json",
        R"({"time_step_limit":[0.0,Infinity],"hidden_size":null,"rope":{"theta":NaN},)"
        R"("quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":[]},)"
        "\"bad\\nname\":1}");
  const Result<Checkpoint> opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  EXPECT_EQ(opened->summary().quantization, "mxfp4");
  EXPECT_EQ(opened->summary().ignored_fields,
            (std::vector<std::string>{
                "config.json bad\\x0aname", "config.json rope", "config.json time_step_limit"}));
}

TEST_F(Folder, numbers_that_are_not_finite_or_not_numbers_are_refused) {
  write("model.safetensors", a_);
  const std::vector<std::string> fields{"num_experts_per_tok",
                                        "n_group",
                                        "topk_group",
                                        "moe_intermediate_size",
                                        "routed_scaling_factor",
                                        "swiglu_limit",
                                        "swiglu_alpha"};
  const std::vector<std::pair<std::string, std::string>> values{
      {"Infinity", "'Infinity'"},
      {"-Infinity", "'-Infinity'"},
      {"NaN", "'NaN'"},
      {R"({"__float__": "Infinity"})", "'Infinity'"},
      {R"("8")", "'8'"},
      {"[8]", "an array"},
      {"true", "true"}};
  for (const std::string& field : fields) {
    for (const auto& [value, shown] : values) {
      write("config.json", "{\"" + field + "\":" + value + "}");
      expect_refused(StatusCode::kInvalidArgument, {"config.json " + field + " is " + shown});
    }
  }
}

TEST_F(Folder, a_file_reads_the_configuration_beside_it_only_when_it_holds_experts) {
  write("config.json", "broken");
  write("input.safetensors", a_);
  EXPECT_TRUE(Checkpoint::open(path("input.safetensors")).has_value());
  write("layer.safetensors",
        compose_zeros({{"model.layers.2.mlp.experts.0.up_proj.weight", "BF16", {8, 16}},
                       {"model.layers.2.mlp.experts.0.gate_proj.weight", "BF16", {8, 16}},
                       {"model.layers.2.mlp.experts.0.down_proj.weight", "BF16", {16, 8}}}));
  EXPECT_EQ(Checkpoint::open(path("layer.safetensors")).status().code(),
            StatusCode::kInvalidArgument);
  write("config.json", R"({"model_type":"qwen3_moe","hidden_act":"gelu_pytorch_tanh"})");
  const Result<Checkpoint> opened = Checkpoint::open(path("layer.safetensors"));
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  const Result<CheckpointLayer> layer = opened->layer(2);
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->problem.activation.kind, ActivationKind::kGeluTanh);
}

TEST_F(Folder, a_configuration_that_is_no_file_is_not_taken_for_absent) {
  write("model.safetensors", a_);
  for (const char* name : {"config.json", "hf_quant_config.json", "model.safetensors.index.json"}) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_symlink("blob that is gone", path);
    expect_refused(StatusCode::kIo, {"cannot follow the link", name});
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    expect_refused(StatusCode::kIo, {name, "is not a regular file"});
    std::filesystem::remove(path);
  }
  EXPECT_TRUE(Checkpoint::open(folder_).has_value());
}

TEST_F(Folder, paths_that_are_not_there) {
  EXPECT_EQ(Checkpoint::open(path("none")).status().code(), StatusCode::kIo);
  EXPECT_EQ(Checkpoint::open("").status().code(), StatusCode::kIo);
  write("empty.safetensors", "");
  EXPECT_EQ(Checkpoint::open(path("empty.safetensors")).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(Folder, a_sparse_layer_above_4_gib) {
  // gate_up [64, 2 * 4096, 6144] is 6 GiB, down 3 GiB behind it; on disk they are holes.
  const std::string header =
      R"({"model.layers.0.mlp.experts.down_proj":{"dtype":"BF16","shape":[64,6144,4096],)"
      R"("data_offsets":[6442450944,9663676416]},)"
      R"("model.layers.0.mlp.experts.gate_up_proj":{"dtype":"BF16","shape":[64,8192,6144],)"
      R"("data_offsets":[0,6442450944]}})";
  std::string start = header;
  start.append((8 - start.size() % 8) % 8, ' ');
  start = compose_file(start, 0);
  {
    std::ofstream file(path("model.safetensors"), std::ios::binary);
    file << start;
    const auto base = static_cast<std::streamoff>(start.size());
    file.seekp(base + 6442450944 - 1);  // last element of the last up row: 0x3F00 is 0.5
    file.put('\x3F');
    file.seekp(base + 9663676416 - 1);  // last element of the last down row
    file.put('\x3F');
  }
  const Result<Checkpoint> opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  EXPECT_EQ(opened->summary().total_bytes, 9663676416);
  const Result<CheckpointLayer> layer = opened->layer(0);
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  const ExpertWeights& last = layer->source.experts[63];
  std::vector<float> row(6144);
  ASSERT_TRUE(decode_row(last.up, 4095, row).ok());
  EXPECT_EQ(row.back(), 0.5F);
  EXPECT_EQ(row[0], 0.0F);
  row.resize(4096);
  ASSERT_TRUE(decode_row(last.down, 6143, row).ok());
  EXPECT_EQ(row.back(), 0.5F);
}

}  // namespace
}  // namespace moekit::checkpoint
