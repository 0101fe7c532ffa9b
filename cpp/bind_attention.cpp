// Python bindings of attention: a call as a struct with named fields, and its two passes.
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "attention/paged.h"
#include "attention/row_copy.h"
#include "bindings.h"
#include "masks/lower.h"
#include "meter/meter.h"

namespace {

using redblue::Array;
using redblue::Call;
using redblue::Edges;
using redblue::Isa;
using redblue::Pattern;
using redblue::SpillTiles;

using Address = std::uintptr_t;

template <class T>
const T* pointer(Address address) {
  return reinterpret_cast<const T*>(address);
}

struct Sizes {
  std::vector<std::int64_t> lead;
  std::int64_t kv_heads, group, n_q, n_k, d, d_v;
};

struct Tiles {
  std::int64_t rows, cols, pieces, dq_cols;
  SpillTiles spilled;
};

// An array (lead..., heads, rows, columns) as Python describes it: its address, and its strides in elements.
struct ArrayOf {
  Array array;
  int leads;
};

void init_array(ArrayOf* self, Address address, const nb::tuple& strides) {
  const int leads = int(strides.size()) - 3;
  if (leads < 0 || leads >= redblue::kMaxLead)
    throw std::invalid_argument("an array has 3 to " + std::to_string(redblue::kMaxLead + 2) + " strides");
  // PyTuple_GetItem borrows its items, which saves time: every array of every call passes here. The stable ABI has no
  // PyTuple_GET_ITEM.
  const auto stride = [&](int i) { return nb::cast<std::int64_t>(nb::handle(PyTuple_GetItem(strides.ptr(), i))); };
  Array array;
  array.data = reinterpret_cast<char*>(address);
  for (int i = 0; i < leads; i++) array.lead[i] = stride(i);
  array.head = stride(leads), array.row = stride(leads + 1), array.column = stride(leads + 2);
  new (self) ArrayOf{array, leads};
}

nb::tuple strides_of(const ArrayOf& self) {
  nb::list strides;
  for (int i = 0; i < self.leads; i++) strides.append(self.array.lead[i]);
  for (const std::int64_t stride : {self.array.head, self.array.row, self.array.column}) strides.append(stride);
  return nb::tuple(strides);
}

// Returns an empty array for a null pointer: the argument was not given.
Array to_array(const ArrayOf* source, int leads) {
  if (!source) return {};
  if (source->leads != leads) throw std::invalid_argument("an array has one stride for each of its dimensions");
  return source->array;
}

void set_sizes(Call& call, const Sizes& sizes) {
  call.leads = int(sizes.lead.size());
  if (call.leads >= redblue::kMaxLead)
    throw std::invalid_argument("at most " + std::to_string(redblue::kMaxLead - 1) + " leading dimensions");
  std::copy(sizes.lead.begin(), sizes.lead.end(), call.lead_sizes);
  call.kv_heads = sizes.kv_heads, call.group = sizes.group, call.heads = sizes.kv_heads * sizes.group;
  call.n_q = sizes.n_q, call.n_k = sizes.n_k, call.d = sizes.d, call.d_v = sizes.d_v;
}

void set_tiles(Call& call, const Tiles& tiles) {
  call.rows = tiles.rows, call.cols = tiles.cols, call.pieces = tiles.pieces, call.dq_cols = tiles.dq_cols;
  call.spilled = tiles.spilled;
}

// A pattern as Python describes it. `planes` becomes an Array when the call gives the number of leading dimensions.
struct PatternOf {
  Pattern pattern;
  std::optional<ArrayOf> planes;
};

Pattern to_pattern(const PatternOf* source, int leads) {
  if (!source) return {};
  Pattern pattern = source->pattern;
  pattern.planes = to_array(source->planes ? &*source->planes : nullptr, leads);
  return pattern;
}

void bind_array(nb::module_& m) {
  nb::class_<ArrayOf>(m, "Array")
      .def("__init__", init_array, "address"_a, "strides"_a)
      .def_prop_ro("address", [](const ArrayOf& self) { return reinterpret_cast<Address>(self.array.data); })
      .def_prop_ro("strides", strides_of);
}

void bind_sizes(nb::module_& m) {
  nb::class_<Sizes>(m, "Sizes")
      .def(
          "__init__",
          [](Sizes* self, std::vector<std::int64_t> lead, std::int64_t kv_heads, std::int64_t group, std::int64_t n_q,
             std::int64_t n_k, std::int64_t d, std::int64_t d_v) {
            new (self) Sizes{std::move(lead), kv_heads, group, n_q, n_k, d, d_v};
          },
          "lead"_a, "kv_heads"_a, "group"_a, "n_q"_a, "n_k"_a, "d"_a, "d_v"_a);
}

void bind_tiles(nb::module_& m) {
  nb::class_<SpillTiles>(m, "SpillTiles")
      .def("__init__", [](SpillTiles* self, bool stays, std::int64_t rows, std::int64_t cols, std::int64_t depth,
                          std::int64_t out_rows, std::int64_t out_cols, std::int64_t dk_rows, std::int64_t dk_cols,
                          std::int64_t dv_rows, std::int64_t dv_cols, std::int64_t chunk) {
        if (rows < 1) throw std::invalid_argument("tile edges must be at least 1");
        new (self) SpillTiles{rows, cols, depth, out_rows, out_cols, dk_rows, dk_cols, dv_rows, dv_cols, chunk, stays};
      }, "stays"_a, "rows"_a, "cols"_a, "depth"_a, "out_rows"_a, "out_cols"_a, "dk_rows"_a, "dk_cols"_a, "dv_rows"_a,
         "dv_cols"_a, "chunk"_a);
  nb::class_<Tiles>(m, "Tiles")
      .def("__init__", [](Tiles* self, std::int64_t rows, std::int64_t cols, std::int64_t pieces, std::int64_t dq_cols,
                          const SpillTiles* spilled) {
        if (rows < 1 || cols < 1 || dq_cols < 0) throw std::invalid_argument("tile edges must be at least 1");
        new (self) Tiles{rows, cols, pieces, dq_cols, spilled ? *spilled : SpillTiles{}};
      }, "rows"_a = 1, "cols"_a = 1, "pieces"_a = 1, "dq_cols"_a = 0, "spilled"_a = nb::none());
}

void bind_mask(nb::module_& m) {
  nb::class_<PatternOf>(m, "Pattern")
      .def(
          "__init__",
          [](PatternOf* self, Address starts, Address runs, Address bits, const ArrayOf* planes, std::int64_t panel,
             std::int64_t panels, std::int64_t planes_count, bool scattered) {
            Pattern pattern;
            pattern.starts = pointer<std::int64_t>(starts);
            pattern.runs = pointer<redblue::Run>(runs);
            pattern.bits = pointer<std::uint64_t>(bits);
            pattern.panel = panel, pattern.panels = panels, pattern.planes_count = planes_count,
            pattern.scattered = scattered;
            new (self) PatternOf{pattern, planes ? std::optional<ArrayOf>(*planes) : std::nullopt};
          },
          "starts"_a = 0, "runs"_a = 0, "bits"_a = 0, "planes"_a = nb::none(), "panel"_a = 1, "panels"_a = 0,
          "planes_count"_a = 1, "scattered"_a = false);
  nb::class_<Edges>(m, "Edges")
      .def(
          "__init__",
          [](Edges* self, Address query_starts, Address keys, Address key_starts, Address queries) {
            new (self) Edges{pointer<std::int64_t>(query_starts), pointer<std::int64_t>(key_starts),
                             pointer<std::int32_t>(keys), pointer<std::int32_t>(queries)};
          },
          "query_starts"_a, "keys"_a, "key_starts"_a, "queries"_a);
}

// Sets the option called `name` to a Python value, a number or an array; a visitor for Options::each. None leaves an
// array out.
struct SetOption {
  const char* name;
  nb::handle value;
  int leads;
  bool known = false;

  void operator()(const char* field, Array& array) {
    if (!matches(field) || value.is_none()) return;
    array = to_array(nb::cast<const ArrayOf*>(value), leads);
  }
  void operator()(const char* field, redblue::Number& number) {
    if (matches(field)) number = redblue::Number(nb::cast<int>(value));
  }
  template <class T>
  void operator()(const char* field, T& number) {
    if (matches(field)) number = nb::cast<T>(value);
  }

 private:
  bool matches(const char* field) { return !std::strcmp(name, field) && (known = true); }
};

void set_options(Call& call, const nb::kwargs& options) {
  for (const auto& [key, value] : options) {
    SetOption set{nb::cast<const char*>(key), value, call.leads};
    call.each(set);
    if (set.known) continue;
    PyErr_Format(PyExc_TypeError, "a call has no option '%s'", set.name);
    throw nb::python_error();
  }
}

// Fills the fields in the order of their declaration in attention/call.h.
void init_call(Call* self, int number, const Sizes& sizes, const Tiles& tiles, int threads, std::int64_t first,
               std::int64_t end, const ArrayOf& q, const ArrayOf& k, const ArrayOf& v, const ArrayOf& out,
               const ArrayOf& lse, const ArrayOf* dout, const ArrayOf* dq, const ArrayOf* dk, const ArrayOf* dv,
               const ArrayOf* delta, const ArrayOf* dlse, const PatternOf* pattern, const PatternOf* by_query,
               const Edges* edges, const ArrayOf* dbias, const nb::kwargs& options) {
  Call call;
  call.number = redblue::Number(number);
  set_sizes(call, sizes);
  set_tiles(call, tiles);
  call.threads = threads;
  call.first = first, call.end = end;
  const auto array = [&](const ArrayOf* source) { return to_array(source, call.leads); };
  call.q = array(&q), call.k = array(&k), call.v = array(&v), call.out = array(&out), call.lse = array(&lse);
  call.dout = array(dout), call.dq = array(dq), call.dk = array(dk), call.dv = array(dv);
  call.delta = array(delta), call.dlse = array(dlse);
  call.pattern = to_pattern(pattern, call.leads), call.by_query = to_pattern(by_query, call.leads);
  if (edges) call.edges = *edges, call.edges.n_q = call.n_q, call.edges.n_k = call.n_k;
  call.dbias = array(dbias);
  set_options(call, options);
  new (self) Call(call);
}

void bind_call(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<Call>(m, "Call").def(
      "__init__", init_call, "number"_a, "sizes"_a, "tiles"_a, "threads"_a, "first"_a, "end"_a, "q"_a, "k"_a, "v"_a,
      "out"_a, "lse"_a, "dout"_a = none, "dq"_a = none, "dk"_a = none, "dv"_a = none, "delta"_a = none, "dlse"_a = none,
      "pattern"_a = none, "by_query"_a = none, "edges"_a = none, "dbias"_a = none, "options"_a);
}

// The sequences of a call on paged keys, and their masks.
struct Sequences {
  std::int64_t count;
  Address starts, lengths, table;
  std::int64_t most, page, left, right;
  Address tree;
  std::int64_t newest, prefix;
};

void init_paged_call(redblue::PagedCall* self, int number, const Sizes& sizes, const Tiles& tiles, int threads,
                     const Sequences& of, const ArrayOf& q, const ArrayOf& k, const ArrayOf& v, const ArrayOf& out,
                     const ArrayOf& lse, std::int64_t v_in_k, const nb::kwargs& options) {
  redblue::PagedCall paged;
  Call& call = paged.common;
  call.number = redblue::Number(number);
  set_sizes(call, sizes);
  set_tiles(call, tiles);
  call.threads = threads;
  set_options(call, options);  // arrays of options have a leading dimension of sequences
  call.leads = 0;
  call.q = to_array(&q, 0), call.out = to_array(&out, 0), call.lse = to_array(&lse, 0);
  call.k = to_array(&k, 1), call.v = to_array(&v, 1);
  call.pages.size = of.page, call.pages.v_in_k = v_in_k;
  call.pages.k_step = call.k.lead[0], call.pages.v_step = call.v.lead[0];
  paged.sequences = of.count;
  paged.starts = pointer<std::int64_t>(of.starts), paged.lengths = pointer<std::int64_t>(of.lengths);
  paged.table = pointer<std::int64_t>(of.table), paged.most = of.most;
  paged.left = of.left, paged.right = of.right;
  paged.tree = pointer<std::uint8_t>(of.tree), paged.newest = of.newest;
  paged.prefix = of.prefix;
  new (self) redblue::PagedCall(std::move(paged));
}

void bind_paged_call(nb::module_& m) {
  nb::class_<Sequences>(m, "Sequences")
      .def(
          "__init__",
          [](Sequences* self, std::int64_t count, Address starts, Address lengths, Address table, std::int64_t most,
             std::int64_t page, std::int64_t left, std::int64_t right, Address tree, std::int64_t newest,
             std::int64_t prefix) {
            if (page < 1) throw std::invalid_argument("a page must hold at least 1 key");
            new (self) Sequences{count, starts, lengths, table, most, page, left, right, tree, newest, prefix};
          },
          "count"_a, "starts"_a, "lengths"_a, "table"_a, "most"_a, "page"_a, "left"_a = -1, "right"_a = 0, "tree"_a = 0,
          "newest"_a = 0, "prefix"_a = -1);
  nb::class_<redblue::PagedCall>(m, "PagedCall")
      .def("__init__", init_paged_call, "number"_a, "sizes"_a, "tiles"_a, "threads"_a, "sequences"_a, "q"_a, "k"_a,
           "v"_a, "out"_a, "lse"_a, "v_in_k"_a = -1, "options"_a);
}

void bind_row_copy(nb::module_& m) {
  using redblue::RowCopy;
  nb::class_<RowCopy>(m, "RowCopy")
      .def(
          "__init__",
          [](RowCopy* self, Address pages, Address rows, std::int64_t count, std::int64_t heads, std::int64_t width,
             std::int64_t size, const std::array<std::int64_t, 3>& from, const std::array<std::int64_t, 4>& to) {
            new (self) RowCopy{pointer<std::int64_t>(pages), pointer<std::int64_t>(rows), count, heads, width, size,
                               from[0] * size, from[1] * size, from[2] * size,
                               to[0] * size, to[1] * size, to[2] * size, to[3] * size};
          },
          "pages"_a, "rows"_a, "count"_a, "heads"_a, "width"_a, "size"_a, "source_strides"_a,
          "cache_strides"_a)
      .def(
          "run",
          [](const RowCopy& self, Address from, Address to, int threads) {
            const nb::gil_scoped_release others_may_run;
            self.run(pointer<char>(from), reinterpret_cast<char*>(to), threads);
          },
          "source"_a, "cache"_a, "threads"_a);
}

void bind_nodes(nb::module_& m) {
  nb::class_<redblue::Node>(m, "Node")
      .def_ro("first", &redblue::Node::first)
      .def_ro("stop", &redblue::Node::stop)
      .def_ro("members", &redblue::Node::members);
  m.def("shared_nodes", &redblue::shared_nodes, "call"_a);
}

std::pair<std::int64_t, std::int64_t> run_paged(const Isa& isa, const redblue::PagedCall& call) {
  const nb::gil_scoped_release others_may_run;
  const redblue::Measured measured;
  const redblue::Moved moved = redblue::forward(call, isa);
  return {moved.reads, moved.writes};
}

// Runs the call on other arrays of the same shapes and strides, given by their addresses. lse: 0 if it is not needed.
std::pair<std::int64_t, std::int64_t> run_paged_on(const Isa& isa, const redblue::PagedCall& call, int threads,
                                                   Address q, Address k, Address v, Address out, Address lse) {
  redblue::PagedCall own = call;
  own.common.threads = threads;
  const auto place = [](Array& array, Address address) { array.data = reinterpret_cast<char*>(address); };
  place(own.common.q, q), place(own.common.k, k), place(own.common.v, v);
  place(own.common.out, out), place(own.common.lse, lse);
  std::unique_ptr<double[]> unread;
  if (!lse) {
    unread.reset(new double[call.starts[call.sequences] * call.common.heads]);
    own.common.lse.data = reinterpret_cast<char*>(unread.get());
  }
  return run_paged(isa, own);
}

template <redblue::Moved (*pass)(const Call&, const Isa&)>
std::pair<std::int64_t, std::int64_t> run_pass(const Isa& isa, const Call& call) {
  const nb::gil_scoped_release others_may_run;
  const redblue::Measured measured;
  const redblue::Moved moved = pass(call, isa);
  return {moved.reads, moved.writes};
}

}  // namespace

void bind_attention(nb::module_& m) {
  bind_array(m);
  bind_sizes(m);
  bind_tiles(m);
  bind_mask(m);
  bind_call(m);
  bind_paged_call(m);
  bind_row_copy(m);
  bind_nodes(m);
  m.def("attention_paged", run_paged, "isa"_a, "call"_a);
  m.def("attention_paged_on", run_paged_on, "isa"_a, "call"_a, "threads"_a, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a);
  m.def(
      "same_bytes",
      [](Address a, Address b, std::size_t bytes) { return !std::memcmp(pointer<void>(a), pointer<void>(b), bytes); },
      "a"_a, "b"_a, "bytes"_a);
  m.def("attention_forward", run_pass<redblue::forward>, "isa"_a, "call"_a);
  m.def("attention_backward", run_pass<redblue::backward>, "isa"_a, "call"_a);
  m.def(
      "list_tasks",
      [](const Isa& isa, const Call& call, bool backward) {
        std::vector<std::int64_t> fields;
        for (const auto& [stream, start, count, piece] : redblue::list_tasks(call, isa, backward))
          fields.insert(fields.end(), {stream, start, count, piece});
        return copied(fields);
      },
      "isa"_a, "call"_a, "backward"_a);
  m.def("use_openmp_of", &redblue::use_openmp_of, "path"_a);
  m.def(
      "by_key",
      [](const Lines& query_starts, const Numbers<std::int32_t>& keys, std::int64_t n_k) {
        const std::int64_t n_q = std::int64_t(query_starts.shape(0)) - 1;
        const auto lists = redblue::by_key(query_starts.data(), keys.data(), n_q, n_k);
        return nb::make_tuple(copied(lists.starts), copied(lists.queries));
      },
      "query_starts"_a, "keys"_a, "n_k"_a);
  m.def(
      "lower_array",
      [](const nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::device::cpu>& attends, std::int64_t group,
         std::int64_t panel, std::int64_t least, std::size_t most) {
        if (attends.shape(1) > 1 && attends.stride(1) != 1) throw std::invalid_argument("a row's bytes must be dense");
        redblue::LoweredArray lowered;
        {
          nb::gil_scoped_release released;
          lowered = redblue::lower_array(attends.data(), attends.stride(0), attends.shape(0), attends.shape(1), group,
                                         panel, least, most);
        }
        return nb::make_tuple(copied(lowered.counts), copied(lowered.runs), copied(lowered.words), lowered.pairs);
      },
      "attends"_a, "group"_a, "panel"_a, "least"_a, "most"_a);
}
