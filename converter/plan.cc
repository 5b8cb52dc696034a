#include "converter/plan.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "runtime/model_file.h"

namespace adder {
namespace {

// value times a multiplier, rounded once.
float Scaled(float value, double scale) {
  return scale == 1.0 ? value : static_cast<float>(static_cast<double>(value) * scale);
}

// The rows and columns of a row-major matrix that a planned matrix consists of.
FloatView Select(const FloatView& source, size_t source_cols, const Selection& rows,
                 Channels cols) {
  const Part& first = rows.parts()[0];
  if (rows.parts().size() == 1 && first.scale == 1.0 && first.channels.contiguous() &&
      cols.contiguous() && cols.size() == source_cols) {
    return {source.owner, source.values.subspan(first.channels.begin * source_cols,
                                                first.channels.size() * source_cols)};
  }
  std::vector<float> out(rows.size() * cols.size(), 0.0f);
  float* to = out.data();
  for (const auto& [row, scale] : rows.Elements()) {
    for (size_t c = 0; row != SIZE_MAX && c < cols.size(); ++c) {
      const size_t col = cols.Source(c);
      if (col != SIZE_MAX) to[c] = Scaled(source.values[row * source_cols + col], scale);
    }
    to += cols.size();
  }
  return FloatView::Own(std::move(out));
}

std::string BiasName(const std::string& weight) {
  constexpr std::string_view kWeight = ".weight";
  if (!weight.ends_with(kWeight)) return "";  // merged experts have none
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

size_t Selection::size() const {
  size_t size = 0;
  for (const Part& part : parts_) size += part.channels.size();
  return size;
}

std::vector<Selection::Element> Selection::Elements() const {
  std::vector<Element> elements;
  elements.reserve(size());
  for (const Part& part : parts_) {
    for (size_t i = 0; i < part.channels.size(); ++i) {
      elements.push_back({part.channels.Source(i), part.scale});
    }
  }
  return elements;
}

Selection Selection::OfBias() const {
  std::vector<Part> parts = parts_;
  for (Part& part : parts) part.scale = part.bias_scale;
  if (size() % kLanes != 0) parts.push_back({Channels::Padding(kLanes - size() % kLanes)});
  return parts;
}

Result<FloatView> TensorLoader::Load(const Source& source) {
  if (last_.owner == nullptr || source != last_source_) {
    last_ = {};  // before the next one is read: two big tensors need not fit
    std::vector<float> values;
    if (source.slices == 0) {
      ADDER_ASSIGN_OR_RETURN(values, checkpoint_.ReadF32(source.name));
    } else {
      const SourceTensor slice = checkpoint_.Find(source.name)->Slice(source.slice);
      ADDER_ASSIGN_OR_RETURN(
          values, ReadF32(slice, source.name + "[" + std::to_string(source.slice) + "]"));
    }
    last_ = FloatView::Own(std::move(values));
    last_source_ = source;
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

size_t PlanBuilder::Rows(const Source& source) {
  return source.slices == 0 ? Dim(source.name, 2, 0) : Dim(source.name, 3, 1);
}

size_t PlanBuilder::Cols(const Source& source) {
  return source.slices == 0 ? Dim(source.name, 2, 1) : Dim(source.name, 3, 2);
}

bool PlanBuilder::CheckShape(const Source& source, std::vector<uint64_t> shape) {
  if (source.slices > 0) shape.insert(shape.begin(), source.slices);
  used_.insert(source.name);
  const SourceTensor* tensor = checkpoint_.Find(source.name);
  if (tensor == nullptr) {
    Fail(Error(Code::kNotFound, "tensor %s is missing", source.name.c_str()));
  } else if (tensor->shape != shape) {
    Fail(Error(Code::kCorruptFile, "tensor %s has shape %s, expected %s", source.name.c_str(),
               ShapeText(tensor->shape).c_str(), ShapeText(shape).c_str()));
  }
  return status_.ok();
}

void PlanBuilder::MatrixWithoutBias(const std::string& name, Role role, const Source& source,
                                    size_t source_rows, size_t source_cols, const Selection& rows,
                                    Channels cols) {
  if (!CheckShape(source, {source_rows, source_cols})) return;
  plan_->tensors.push_back(
      {name, role, {rows.size(), cols.size()}, [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView matrix, loader.Load(source));
         return Select(matrix, source_cols, rows, cols);
       }});
}

void PlanBuilder::Matrix(const std::string& name, Role role, const Source& source,
                         size_t source_rows, size_t source_cols, const Selection& rows,
                         Channels cols) {
  MatrixWithoutBias(name, role, source, source_rows, source_cols, rows, cols);
  const std::string bias = BiasName(source.name);
  if (Has(bias)) Array(name + ".bias", bias, source_rows, rows.OfBias());
}

void PlanBuilder::Array(const std::string& name, const std::string& source, size_t source_size,
                        const Selection& channels, Function function) {
  if (!CheckShape(source, {source_size})) return;
  function = Remaining(function, source);
  plan_->tensors.push_back(
      {name, Role::kArray, {channels.size()}, [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView values, loader.Load(source));
         FloatView selected = Select(values, 1, channels, Channels::Range(0, 1));
         if (function == nullptr) return selected;
         std::vector<float> out(selected.values.begin(), selected.values.end());
         const auto elements = channels.Elements();
         for (size_t i = 0; i < out.size(); ++i) {
           if (elements[i].source != SIZE_MAX)
             out[i] = static_cast<float>(function(static_cast<double>(out[i])));
         }
         return FloatView::Own(std::move(out));
       }});
}

PlanBuilder::Function PlanBuilder::Remaining(Function function, const std::string& source) const {
  const bool is_a = checkpoint_.Find(source)->negative_exp;
  return is_a && function == NegativeExpTimesLog2E ? TimesLog2E : function;
}

void PlanBuilder::ShapedArray(const std::string& name, const std::string& source,
                              std::vector<uint64_t> shape, Channels elements) {
  if (!CheckShape(source, shape)) return;
  plan_->tensors.push_back(
      {name, Role::kArray, std::move(shape), [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView values, loader.Load(source));
         return Select(values, 1, elements, Channels::Range(0, 1));
       }});
}

void PlanBuilder::RankRows(const std::string& name, const std::string& source, size_t ranks,
                           Channels channels) {
  if (!CheckShape(source, {channels.heads, ranks, channels.width})) return;
  plan_->tensors.push_back(
      {name,
       Role::kArray,
       {ranks, channels.size()},
       [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView values, loader.Load(source));
         std::vector<float> out(ranks * channels.size(), 0.0f);
         for (size_t i = 0; i < out.size(); ++i) {
           const size_t rank = i / channels.size(), channel = i % channels.size();
           const size_t head = channel / channels.padded_width;
           const size_t offset = channel % channels.padded_width;
           if (offset < channels.width)
             out[i] = values.values[(head * ranks + rank) * channels.width + offset];
         }
         return FloatView::Own(std::move(out));
       }});
}

void PlanBuilder::ArrayOrZeros(const std::string& name, const std::string& source,
                               size_t source_size, const Selection& channels) {
  if (Has(source)) return Array(name, source, source_size, channels);
  Values(name, std::vector<float>(channels.size(), 0.0f));
}

void PlanBuilder::Values(const std::string& name, std::vector<float> values) {
  const FloatView view = FloatView::Own(std::move(values));
  plan_->tensors.push_back(
      {name, Role::kArray, {view.values.size()}, [=](TensorLoader&) -> Result<FloatView> {
         return view;
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
                             const Selection& channels, Function function) {
  function = Remaining(function, source);
  plan_->tensors.push_back(
      {name,
       Role::kArray,
       {channels.size() / kLanes, inner, kLanes},
       [=](TensorLoader& loader) -> Result<FloatView> {
         ADDER_ASSIGN_OR_RETURN(const FloatView values, loader.Load(source));
         const auto elements = channels.Elements();
         std::vector<float> out(elements.size() * inner, 0.0f);
         for (size_t c = 0; c < elements.size(); ++c) {
           const auto [from, scale] = elements[c];
           if (from == SIZE_MAX) continue;
           for (size_t i = 0; i < inner; ++i) {
             const float value = Scaled(values.values[from * inner + i], scale);
             out[(c / kLanes * inner + i) * kLanes + c % kLanes] =
                 function == nullptr ? value
                                     : static_cast<float>(function(static_cast<double>(value)));
           }
         }
         return FloatView::Own(std::move(out));
       }});
}

void PlanBuilder::Convolution(const std::string& name, const std::string& source,
                              size_t source_channels, size_t taps, const Selection& channels) {
  if (CheckShape(source, {source_channels, 1, taps}))
    LaneBlocks(name, source, taps, channels, nullptr);
}

void PlanBuilder::StateMatrix(const std::string& name, const std::string& source,
                              size_t source_channels, size_t d_state, Channels channels) {
  if (CheckShape(source, {source_channels, d_state})) {
    LaneBlocks(name, source, d_state, channels, NegativeExpTimesLog2E);
  }
}

size_t PlanBuilder::UseAll(const std::string& prefix) {
  size_t count = 0;
  const TensorMap& tensors = checkpoint_.tensors();
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix);
       ++it) {
    used_.insert(it->first);
    ++count;
  }
  return count;
}

std::vector<std::string> PlanBuilder::Unused() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (!used_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace adder
