// Reads TorchScript files as `torch.jit.load` does, but without the GIL: that function holds it while
// it reads and copies all weights, and meanwhile no other thread of a server answers.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

namespace {

torch::jit::Module load(const std::string& path, const std::string& device) {
  pybind11::gil_scoped_release without_gil;
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::ExtraFilesMap no_extra_files;
  return torch::jit::import_ir_module(std::move(unit), path, c10::Device(device), no_extra_files);
}

}  // namespace

PYBIND11_MODULE(torchscript_file, module) {
  module.attr("TORCH_VERSION") = TORCH_VERSION;  // the only one whose objects it shares
  module.def("load", &load);
}
