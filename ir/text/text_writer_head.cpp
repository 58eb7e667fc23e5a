// Prints the head of the canonical text: metadata, operators, storages, constants, regions and dependencies.
#include "ir/text/tensor_bytes.h"
#include "ir/text/text_writer.h"
#include "ir/text/words.h"

namespace shadowgraph {

// Everything that nodes cite stands above them, so that a reader needs one pass.
void TextWriter::head() {
  put("shadowgraph 1 libtorch ");
  put(libtorch_version());
  put('\n');
  for (const auto& [key, value] : graph_.metadata.lines()) {
    put("meta ");
    append_quoted(out_, key);
    put(" = ");
    append_quoted(out_, value);
    put('\n');
  }
  for (TargetId id : numbering_.targets()) {
    put(graph_.target(id).kind() == TargetKind::kFunction ? "function " : "operator ");
    put(graph_.target(id).schema_text());
    put('\n');
  }
  for (uint32_t i = 0; i < numbering_.storages().size(); ++i) storage_line(i, numbering_.storages()[i]);
  // Before the regions, whose arguments may be constants.
  for (uint32_t i = 0; i < numbering_.constants().size(); ++i) constant_line(i, numbering_.constants()[i]);
  for (uint32_t i = 0; i < graph_.region_count(); ++i) region_line(RegionId(i));
  for (const Guard& guard : graph_.guards) guard_line(guard);
}

void TextWriter::storage_line(uint32_t n, StorageId id) {
  const Storage& storage = graph_.storage(id);
  number('s', n);
  put(" = ");
  append_int(out_, storage.bytes);
  put(' ');
  append_device(out_, storage.device());
  put(' ');
  put(to_string(storage.kind));
  // Says where a storage is born only if that is not the first node that makes a value in it, which parse() assumes.
  const uint32_t born = numbering_.of(storage.born);
  if (born != numbering_.of(numbering_.first_node(id))) {
    put(" born ");
    if (born == Numbering::kNone) {
      put("before");
    } else {
      number('n', born);
    }
  }
  put('\n');
}

void TextWriter::region_line(RegionId id) {
  const Region& region = graph_.region(id);
  const std::string_view name = graph_.text_or_empty(region.name);
  const std::string_view class_name = graph_.text_or_empty(region.class_name);
  const bool has_target = region.target.index < graph_.target_count();
  // The root is in every graph; a line for it would only say what is known.
  const bool says_more = region.call != 0 || region.inferred || has_target || region.parent.valid();
  // A root with a name or a call has something to say, and is printed.
  if (id == Graph::kRootRegion && name.empty() && class_name.empty() && !says_more) return;
  number('r', id.index);
  put(" = ");
  put(to_string(region.kind));
  // A composite is called what its operator is called; that name is not repeated.
  const bool name_is_target = has_target && name == graph_.target(region.target).name();
  if (!name_is_target || !class_name.empty()) {
    put(' ');
    append_quoted(out_, name);
  }
  if (!class_name.empty()) {
    put(' ');
    append_quoted(out_, class_name);
  }
  if (region.kind == RegionKind::kModule || region.call != 0) {
    put(" call ");
    append_int(out_, region.call);
  }
  if (has_target) {
    put(' ');
    target_name(region.target);
    if (region.arguments.size != 0) arguments(region.target, graph_.region_arguments(id));
  }
  if (region.parent.valid()) {
    put(" in ");
    number('r', region.parent.index);
  }
  if (region.inferred) put(" inferred");
  put('\n');
}

// A constant without readable contents (meta, sparse) is kept as a declaration: the rest of the graph still comes back.
void TextWriter::constant_line(uint32_t n, ConstantId id) {
  const auto bytes = tensor_bytes(graph_.constant(id));
  number('c', n);
  put(" = ");
  if (!bytes) {
    put("unreadable\n");
    return;
  }
  put(dtype_word(bytes->dtype));
  put('[');
  ints(bytes->sizes);
  put(']');
  if (!has_contiguous_strides(bytes->sizes, bytes->strides)) {
    put('{');
    ints(bytes->strides);
    put('}');
  }
  put(" \"");
  append_base64(out_, bytes->bytes);
  put("\"\n");
}

void TextWriter::guard_line(const Guard& guard) {
  put("depends ");
  put(guard_word(guard.kind));
  put('(');
  number('%', numbering_.of(guard.value));
  // Only a guard on one size has a dimension.
  if (guard.dimension != -1) {
    put(", ");
    append_int(out_, guard.dimension);
  }
  put(") = ");
  append_quoted(out_, guard.observed);
  put('\n');
}

}  // namespace shadowgraph
