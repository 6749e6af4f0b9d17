// Plays a policy from an ONNX file that `pdvf export RUN model.onnx` wrote. README.md says how to build it.

#include <onnxruntime_cxx_api.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

// One episode after the other of any exported method: what is carried from step to step are float arrays.
class Policy {
 public:
  explicit Policy(const char* file) : session_(environment_, file, Ort::SessionOptions{}) {
    Ort::AllocatorWithDefaultOptions allocator;
    for (size_t i = 0; i < session_.GetInputCount(); ++i) {
      inputs_.push_back(session_.GetInputNameAllocated(i, allocator).get());
      shapes_.push_back(session_.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape());
    }
    for (size_t i = 0; i < session_.GetOutputCount(); ++i)
      outputs_.push_back(session_.GetOutputNameAllocated(i, allocator).get());
    reset();
  }

  // Begins an episode: all of the memory is zero.
  void reset() {
    values_.clear();
    for (const auto& shape : shapes_) {
      size_t size = 1;
      for (int64_t n : shape) size *= static_cast<size_t>(n);
      values_.emplace_back(size, 0.0f);
    }
  }

  // The action for an observation, in the robot's units. `reward` is that of the last step; most methods do not ask.
  std::vector<float> act(const std::vector<float>& observation, float reward = 0.0f) {
    const auto place = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<Ort::Value> given;
    std::vector<const char*> in, out;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i] == "observation") values_[i] = observation;
      if (inputs_[i] == "reward") values_[i] = {reward};
      given.push_back(Ort::Value::CreateTensor<float>(place, values_[i].data(), values_[i].size(), shapes_[i].data(),
                                                      shapes_[i].size()));
      in.push_back(inputs_[i].c_str());
    }
    for (const auto& name : outputs_) out.push_back(name.c_str());
    auto made = session_.Run(Ort::RunOptions{nullptr}, in.data(), given.data(), in.size(), out.data(), out.size());
    std::vector<float> action;
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const float* data = made[o].GetTensorData<float>();
      const size_t size = made[o].GetTensorTypeAndShapeInfo().GetElementCount();
      if (outputs_[o] == "action") action.assign(data, data + size);
      for (size_t i = 0; i < inputs_.size(); ++i)  // next.NAME is the memory.NAME of the next step
        if (inputs_[i].rfind("memory.", 0) == 0 && outputs_[o] == "next." + inputs_[i].substr(7))
          values_[i].assign(data, data + size);
    }
    return action;
  }

  size_t observation_size() const {
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i] == "observation") return static_cast<size_t>(shapes_[i][0]);
    return 0;
  }

 private:
  Ort::Env environment_;
  Ort::Session session_;
  std::vector<std::string> inputs_, outputs_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<std::vector<float>> values_;
};

int main(int count, char** words) {
  if (count != 2) {
    std::fprintf(stderr, "usage: adapt model.onnx < observations, one a line\n");
    return 2;
  }
  try {
    Policy policy(words[1]);
    std::vector<float> observation(policy.observation_size());
    for (;;) {
      for (float& x : observation)
        if (std::scanf("%f", &x) != 1) return 0;
      for (float x : policy.act(observation)) std::printf("%.9g ", x);
      std::printf("\n");
    }
  } catch (const Ort::Exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
