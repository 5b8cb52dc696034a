#include "converter/plan.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "runtime/model_file.h"

namespace adder {
namespace {

// The rows and columns of a row-major matrix that a planned matrix consists of.
FloatView Select(const FloatView& source, size_t source_cols, Channels rows, Channels cols) {
  if (rows.contiguous() && cols.contiguous() && cols.size() == source_cols) {
    return {source.owner,
            source.values.subspan(rows.begin * source_cols, rows.size() * source_cols)};
  }
  std::vector<float> out(rows.size() * cols.size(), 0.0f);
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t from = rows.Source(r);
    if (from == SIZE_MAX) continue;
    for (size_t c = 0; c < cols.size(); ++c) {
      const size_t col = cols.Source(c);
      if (col != SIZE_MAX) out[r * cols.size() + c] = source.values[from * source_cols + col];
    }
  }
  return FloatView::Own(std::move(out));
}

std::string BiasName(const std::string& weight) {
  constexpr std::string_view kWeight = ".weight";
  return weight.substr(0, weight.size() - kWeight.size()) + ".bias";
}

double TimesLog2E(double x) { return x * std::numbers::log2e; }

}  // namespace

double NegativeExpTimesLog2E(double x) { return -std::exp(x) * std::numbers::log2e; }

FloatView FloatView::Own(std::vector<float> values) {
  FloatView view;
  view.owner = std::make_shared<const std::vector<float>>(std::move(values));
  view.values = *view.owner;
  return view;
}

Result<FloatView> TensorLoader::Load(const std::string& name) {
  if (name != last_name_) {
    last_ = {};  // before the next one is read: two big tensors need not fit
    last_name_.clear();
    ADDER_ASSIGN_OR_RETURN(std::vector<float> values, checkpoint_.ReadF32(name));
    last_ = FloatView::Own(std::move(values));
    last_name_ = name;
  }
  return last_;
}

void PlanBuilder::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

size_t PlanBuilder::Dim(const std::string& source, size_t rank, size_t axis) {
  const SourceTensor* tensor = checkpoint_.Find(source);
  if (tensor == nullptr) {
    Fail(Error(Code::kNotFound, "tensor %s is missing", source.c_str()));
    return 0;
  }
  if (tensor->shape.size() != rank) {
    Fail(Error(Code::kCorruptFile, "tensor %s has shape %s, expected %zu dimensions",
               source.c_str(), ShapeText(tensor->shape).c_str(), rank));
    return 0;
  }
  return tensor->shape[axis];
}

bool PlanBuilder::CheckShape(const std::string& source, std::vector<uint64_t> shape) {
  used_.insert(source);
  const SourceTensor* tensor = checkpoint_.Find(source);
  if (tensor == nullptr) {
    Fail(Error(Code::kNotFound, "tensor %s is missing", source.c_str()));
  } else if (tensor->shape != shape) {
    Fail(Error(Code::kCorruptFile, "tensor %s has shape %s, expected %s", source.c_str(),
               ShapeText(tensor->shape).c_str(), ShapeText(shape).c_str()));
  }
  return status_.ok();
}

void PlanBuilder::MatrixWithoutBias(const std::string& name, Role role, const std::string& source,
                                    size_t source_rows, size_t source_cols, Channels rows,
                                    Channels cols) {
  if (!CheckShape(source, {source_rows, source_cols})) return;
  plan_->tensors.push_back(
      {name, role, {rows.size(), cols.size()}, [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView matrix, loader.Load(source));
         return Select(matrix, source_cols, rows, cols);
       }});
}

void PlanBuilder::Matrix(const std::string& name, Role role, const std::string& source,
                         size_t source_rows, size_t source_cols, Channels rows, Channels cols) {
  MatrixWithoutBias(name, role, source, source_rows, source_cols, rows, cols);
  const std::string bias = BiasName(source);
  if (!Has(bias)) return;
  if (rows.contiguous()) rows = Channels::Padded(rows.begin, rows.size());
  Array(name + ".bias", bias, source_rows, rows);
}

void PlanBuilder::Array(const std::string& name, const std::string& source, size_t source_size,
                        Channels channels, Function function) {
  if (!CheckShape(source, {source_size})) return;
  function = Remaining(function, source);
  plan_->tensors.push_back(
      {name, Role::kArray, {channels.size()}, [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView values, loader.Load(source));
         FloatView selected = Select(values, 1, channels, Channels::Range(0, 1));
         if (function == nullptr) return selected;
         std::vector<float> out(selected.values.begin(), selected.values.end());
         for (size_t i = 0; i < out.size(); ++i) {
           if (channels.Source(i) != SIZE_MAX)
             out[i] = static_cast<float>(function(static_cast<double>(out[i])));
         }
         return FloatView::Own(std::move(out));
       }});
}

PlanBuilder::Function PlanBuilder::Remaining(Function function, const std::string& source) const {
  const bool is_a = checkpoint_.Find(source)->negative_exp;
  return is_a && function == NegativeExpTimesLog2E ? TimesLog2E : function;
}

void PlanBuilder::ArrayOrZeros(const std::string& name, const std::string& source,
                               size_t source_size, Channels channels) {
  if (Has(source)) return Array(name, source, source_size, channels);
  plan_->tensors.push_back(
      {name, Role::kArray, {channels.size()}, [=](TensorLoader&) -> Result<FloatView> {
         return FloatView::Own(std::vector<float>(channels.size(), 0.0f));
       }});
}

void PlanBuilder::PerHead(const std::string& name, const std::string& source, Channels channels) {
  const size_t per_channel = channels.heads * channels.width;
  if (Dim(source, 1, 0) == per_channel) return Array(name, source, per_channel, channels);
  if (!CheckShape(source, {channels.heads})) return;
  plan_->tensors.push_back(
      {name, Role::kArray, {channels.size()}, [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView values, loader.Load(source));
         std::vector<float> out(channels.size(), 0.0f);
         for (size_t i = 0; i < out.size(); ++i) {
           if (channels.Source(i) != SIZE_MAX) out[i] = values.values[i / channels.padded_width];
         }
         return FloatView::Own(std::move(out));
       }});
}

void PlanBuilder::LaneBlocks(const std::string& name, const std::string& source, size_t inner,
                             Channels channels, Function function) {
  function = Remaining(function, source);
  plan_->tensors.push_back(
      {name,
       Role::kArray,
       {channels.size() / kLanes, inner, kLanes},
       [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView values, loader.Load(source));
         std::vector<float> out(channels.size() * inner, 0.0f);
         for (size_t c = 0; c < channels.size(); ++c) {
           const size_t from = channels.Source(c);
           if (from == SIZE_MAX) continue;
           for (size_t i = 0; i < inner; ++i) {
             const float value = values.values[from * inner + i];
             out[(c / kLanes * inner + i) * kLanes + c % kLanes] =
                 function == nullptr ? value
                                     : static_cast<float>(function(static_cast<double>(value)));
           }
         }
         return FloatView::Own(std::move(out));
       }});
}

void PlanBuilder::Convolution(const std::string& name, const std::string& source,
                              size_t source_channels, size_t taps, Channels channels) {
  if (CheckShape(source, {source_channels, 1, taps}))
    LaneBlocks(name, source, taps, channels, nullptr);
}

void PlanBuilder::StateMatrix(const std::string& name, const std::string& source,
                              size_t source_channels, size_t d_state, Channels channels) {
  if (CheckShape(source, {source_channels, d_state})) {
    LaneBlocks(name, source, d_state, channels, NegativeExpTimesLog2E);
  }
}

std::vector<std::string> PlanBuilder::Unused() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (!used_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace adder
