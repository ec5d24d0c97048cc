// Between a compiled Stan program and its two callers: XLA, by its foreign function interface, and Python, by ctypes.
//
// Compiled once and linked to every program. It sees a program as `model_base` only, so that it does not include the
// whole of Stan Math. No exception leaves this file: XLA gets an error, Python a text.

#include <stan/io/json/json_data.hpp>
#include <stan/model/model_base.hpp>

#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Written by stanc at the end of every program.
stan::model::model_base& new_model(stan::io::var_context& data, unsigned int seed, std::ostream* messages);

namespace {

using Eigen::VectorXd;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A program with its data.
struct Model {
  std::unique_ptr<stan::model::model_base> program;
  std::uint64_t seed;
};

// Models are never removed: what JAX has compiled may outlive the Python object that it was compiled for.
std::shared_mutex models_mutex;
std::unordered_map<std::int64_t, Model> models;

const Model& find_model(std::int64_t handle) {
  std::shared_lock lock(models_mutex);
  auto found = models.find(handle);
  if (found == models.end()) {
    throw std::runtime_error("this Stan target was made in another process. Make it again with relbo.from_stan.");
  }
  return found->second;
}

// With STAN_THREADS every thread needs an autodiff stack of its own, and XLA calls from threads that it has made.
void ensure_autodiff_stack() { static thread_local stan::math::ChainableStack stack; }

// The work at one point: `out` has the size that Python asked for.

// log p, with Jacobians and with every constant.
void log_density(const Model& model, VectorXd& z, VectorXd& out) {
  if (z.hasNaN()) {  // Stan would reject it, but a broken point is no point of zero density
    out[0] = kNaN;
    return;
  }
  try {
    out[0] = model.program->template log_prob<false, true>(z, &std::cout);
  } catch (const std::domain_error&) {
    out[0] = -kInf;
  }
}

// log p and then its gradient, which is zero at a rejected point. `reason` takes the words of the rejection.
void density_and_gradient(const Model& model, VectorXd& z, VectorXd& out, std::string* reason) {
  if (z.hasNaN()) {
    out.setConstant(kNaN);
    return;
  }
  stan::math::nested_rev_autodiff tape;
  try {
    Eigen::Matrix<stan::math::var, Eigen::Dynamic, 1> point = z;
    stan::math::var value = model.program->template log_prob<false, true>(point, &std::cout);
    value.grad();
    out << value.val(), point.adj();
  } catch (const std::domain_error& error) {
    out.setZero();
    out[0] = -kInf;
    if (reason != nullptr) *reason = error.what();
  }
}

void gradient(const Model& model, VectorXd& z, VectorXd& out) { density_and_gradient(model, z, out, nullptr); }

// Parameters, transformed parameters and generated quantities. The random numbers are a function of seed and point.
void constrain(const Model& model, VectorXd& z, VectorXd& out) {
  std::uint64_t state = model.seed;
  for (double coordinate : z) {
    std::uint64_t bits;
    std::memcpy(&bits, &coordinate, sizeof bits);
    state = (state ^ bits) + 0x9e3779b97f4a7c15;  // and then the mixing function of splitmix64
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    state ^= state >> 31;
  }
  auto rng = stan::services::util::create_rng(static_cast<unsigned>(state), static_cast<unsigned>(state >> 32));
  try {
    model.program->write_array(rng, z, out, true, true, &std::cout);
  } catch (const std::domain_error&) {  // `out` holds what was written before, and NaN after it, as CmdStan's output
  }
}

void unconstrain(const Model& model, VectorXd& values, VectorXd& out) {
  model.program->unconstrain_array(values, out, &std::cout);
}

using Work = void (*)(const Model&, VectorXd&, VectorXd&);

template <typename Real>
void for_every_point(Work work, const std::int32_t* handles, ffi::AnyBuffer in, ffi::AnyBuffer out) {
  using Row = Eigen::Matrix<Real, Eigen::Dynamic, 1>;
  VectorXd input(in.dimensions().back()), output(out.dimensions().back());
  const std::size_t num_points = out.element_count() / output.size();
  const Model* model = nullptr;
  for (std::size_t i = 0; i < num_points; ++i) {
    const std::int32_t* words = handles + 2 * i;
    if (i == 0 || words[0] != words[-2] || words[1] != words[-1]) {
      std::int64_t handle;
      std::memcpy(&handle, words, sizeof handle);
      model = &find_model(handle);
    }
    input = Eigen::Map<const Row>(in.typed_data<Real>() + i * input.size(), input.size()).template cast<double>();
    work(*model, input, output);
    Eigen::Map<Row>(out.typed_data<Real>() + i * output.size(), output.size()) = output.template cast<Real>();
  }
}

// `handles` has shape (..., 2), every one an int64 in two words, `in` (..., n) and `out` (..., m). The last two are both
// float32 or both float64.
template <Work work>
ffi::Error handle_call(ffi::Buffer<ffi::S32> handles, ffi::AnyBuffer in, ffi::Result<ffi::AnyBuffer> out) {
  try {
    ensure_autodiff_stack();
    if (in.element_type() == ffi::F32) {
      for_every_point<float>(work, handles.typed_data(), in, *out);
    } else {
      for_every_point<double>(work, handles.typed_data(), in, *out);
    }
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("Stan: ") + error.what());
  } catch (...) {
    return ffi::Error::Internal("Stan: an exception of unknown type");
  }
}

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "\"" : ",\"") + name + "\"";
  return "[" + text + "]";
}

// What Python has to know of names and shapes, as JSON. Names in Stan hold nothing that would need escaping.
std::string describe(const stan::model::model_base& program) {
  std::vector<std::string> coordinates, entries, parameters, variables;
  std::vector<std::vector<std::size_t>> shapes;
  program.unconstrained_param_names(coordinates, false, false);
  program.constrained_param_names(entries, true, true);
  program.get_param_names(parameters, false, false);
  program.get_param_names(variables, true, true);
  program.get_dims(shapes, true, true);
  std::string dims;
  for (const auto& shape : shapes) {
    std::string sizes;
    for (auto size : shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    dims += (dims.empty() ? "[" : ",[") + sizes + "]";
  }
  return "{\"coordinates\":" + quoted(coordinates) + ",\"entries\":" + quoted(entries) +
         ",\"parameters\":" + quoted(parameters) + ",\"variables\":" + quoted(variables) + ",\"shapes\":[" + dims +
         "]}";
}

}  // namespace

#pragma GCC visibility push(default)  // everything else is hidden: two programs must not share symbols

#define RELBO_HANDLER(symbol, work) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(    \
      symbol, handle_call<work>, ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::S32>>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>())

RELBO_HANDLER(relbo_log_density, log_density);
RELBO_HANDLER(relbo_gradient, gradient);
RELBO_HANDLER(relbo_constrain, constrain);
RELBO_HANDLER(relbo_unconstrain, unconstrain);

// The texts that these return are valid until the same thread calls again.
extern "C" {

// Puts the program with these data (JSON) into the table, if it is not there. Returns its description, or Stan's words
// about the data with `*failed` set.
const char* relbo_make(std::int64_t handle, const char* data, unsigned int seed, int* failed) {
  static thread_local std::string answer;
  *failed = 0;
  try {
    ensure_autodiff_stack();
    std::unique_lock lock(models_mutex);
    auto found = models.find(handle);
    if (found == models.end()) {
      std::istringstream stream(data);
      stan::json::json_data context(stream);
      std::unique_ptr<stan::model::model_base> program(&new_model(context, seed, &std::cout));
      found = models.emplace(handle, Model{std::move(program), seed}).first;
    }
    answer = describe(*found->second.program);
  } catch (const std::exception& error) {
    *failed = 1;
    answer = error.what();
  } catch (...) {
    *failed = 1;
    answer = "an exception of unknown type";
  }
  return answer.c_str();
}

// log p and its gradient at `z`, into `out` of size 1 + dim. Returns why the point was rejected, or an empty text.
const char* relbo_evaluate(std::int64_t handle, const double* z, int dim, double* out) {
  static thread_local std::string answer;
  answer.clear();
  VectorXd point = Eigen::Map<const VectorXd>(z, dim), values = VectorXd::Constant(1 + dim, kNaN);
  try {
    ensure_autodiff_stack();
    density_and_gradient(find_model(handle), point, values, &answer);
  } catch (const std::exception& error) {
    answer = error.what();
  } catch (...) {
    answer = "an exception of unknown type";
  }
  Eigen::Map<VectorXd>(out, 1 + dim) = values;
  return answer.c_str();
}

}  // extern "C"

#pragma GCC visibility pop
