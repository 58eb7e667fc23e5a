// Prints what nodes take and give: arguments, and results with their types.
#include "ir/text/tensor_bytes.h"
#include "ir/text/text_writer.h"
#include "ir/text/words.h"

namespace shadowgraph {
namespace {

constexpr size_t kShortList = 4;  // kShort cuts longer lists

}  // namespace

// ---- Arguments ------------------------------------------------------------------------------------------------------

// kShort is for people: long lists say their beginning.
void TextWriter::ints(std::span<const int64_t> list, bool cut, std::string_view separator) {
  const size_t shown = cut && list.size() > kShortList ? kShortList - 1 : list.size();
  for (size_t i = 0; i < shown; ++i) {
    if (i != 0) put(separator);
    append_int(out_, list[i]);
  }
  if (shown < list.size()) put(", ...");
}

// Arguments that equal their schema's default are left out. The default is compared as an argument, so "1" and "1.0"
// differ here as they do for the parser.
void TextWriter::arguments(TargetId target, std::span<const Argument> actual) {
  const Signature& formals = graph_.target(target).signature();
  put('(');
  bool first = true;
  for (size_t i = 0; i < actual.size(); ++i) {
    const Formal* formal = i < formals.arguments.size() ? &formals.arguments[i] : nullptr;
    if (formal != nullptr && formal->default_value && formal->default_value->equals(graph_, actual[i])) continue;
    // The name of a placeholder, and constants: what a fingerprint must not see.
    if (preset_ == PrintPreset::kFingerprint && target.index <= target_of(Builtin::kConstant).index) continue;
    if (!first) put(", ");
    first = false;
    // A value by position is shorter; everything else keeps its name.
    const bool by_position = preset_ == PrintPreset::kShort && actual[i].kind == ArgumentKind::kValue;
    if (formal != nullptr && !by_position) {
      put(formal->name);
      put('=');
    }
    // Arguments of variadic calls have no formal, so their integers cannot be words.
    const FormalType type = formal != nullptr ? formal->type : FormalType();
    argument(actual[i], type.type, type.is_int_list(), type.element, 0);
  }
  put(')');
}

void TextWriter::elements(std::span<const Argument> list, TypeClass element, int depth) {
  const bool cut = preset_ == PrintPreset::kShort && list.size() > kShortList;
  const size_t shown = cut ? kShortList - 1 : list.size();
  for (size_t i = 0; i < shown; ++i) {
    if (i != 0) put(", ");
    argument(list[i], element, false, TypeClass::kAny, depth + 1);
  }
  if (cut) put(", ...");
}

void TextWriter::argument(const Argument& a, TypeClass type, bool int_list, TypeClass element, int depth) {
  switch (a.kind) {
    case ArgumentKind::kNone:
      return put("None");
    case ArgumentKind::kValue:
      return value_ref(a.ref.value);
    case ArgumentKind::kInt: {
      std::string_view word;
      // Numbers of dtypes, layouts and memory formats are libtorch's own and may change, so words are written. A number
      // without a word stays a number.
      // c10's enumerations are a byte wide: 256 + 6 is no dtype.
      if (a.i >= 0 && a.i < 127) {
        if (type == TypeClass::kDtype && a.i < static_cast<int64_t>(c10::ScalarType::Undefined)) {
          word = dtype_word(static_cast<c10::ScalarType>(a.i));
        } else if (type == TypeClass::kLayout) {
          word = layout_word(static_cast<c10::Layout>(a.i));
        } else if (type == TypeClass::kMemoryFormat) {
          word = memory_format_word(static_cast<c10::MemoryFormat>(a.i));
        }
      }
      return word.empty() ? append_int(out_, a.i) : put(word);
    }
    case ArgumentKind::kFloat:
      return append_float(out_, a.d);
    case ArgumentKind::kBool:
      return put(a.b ? "true" : "false");
    case ArgumentKind::kComplex: {
      const auto parts = graph_.complex_parts(a);
      put("complex(");
      append_float(out_, parts[0]);
      put(", ");
      append_float(out_, parts[1]);
      return put(')');
    }
    case ArgumentKind::kString:
      return append_quoted(out_, graph_.text_or_empty(a.string));
    case ArgumentKind::kDevice:
      return append_device(out_, a.device());
    // A list of ints where the schema has one is `[..]`. The other kind of list is marked, so that both come back as
    // what they were.
    case ArgumentKind::kIntList:
      put(int_list ? "[" : "ints[");
      ints(graph_.ints(a), preset_ == PrintPreset::kShort, ", ");
      return put(']');
    case ArgumentKind::kList:
      // Depth is bounded as in the parser, which would refuse what is printed deeper.
      if (depth >= kMaxListDepth) return put("[?]");
      put(int_list ? "list[" : "[");
      elements(graph_.list(a), element, depth);
      return put(']');
    case ArgumentKind::kConstant:
      return preset_ == PrintPreset::kFingerprint ? put("<constant>") : number('c', numbering_.of(a.constant));
    case ArgumentKind::kGenerator:
      put("generator(");
      append_device(out_, a.device());
      return put(')');
    case ArgumentKind::kOpaque:
      put("opaque(");
      append_quoted(out_, graph_.text_or_empty(a.string));
      return put(')');
  }
  put('?');
}

// ---- Results --------------------------------------------------------------------------------------------------------

// Names and types are written apart: names first, so that lines begin with what they make.
void TextWriter::result_names(std::span<const Argument> results, int depth) {
  bool first = true;
  for (const Argument& result : results) {
    if (!first) put(", ");
    first = false;
    if (result.kind == ArgumentKind::kValue) {
      number('%', numbering_.of(result.ref.value));
    } else if (result.kind == ArgumentKind::kList && depth < kMaxListDepth) {
      put('[');
      result_names(graph_.list(result), depth + 1);
      put(']');
    } else {
      put("None");
    }
  }
}

void TextWriter::result_types(std::span<const Argument> results, int depth) {
  bool first = true;
  for (const Argument& result : results) {
    if (!first) put(", ");
    first = false;
    if (result.kind == ArgumentKind::kValue) {
      type(result.ref.value);
    } else if (result.kind == ArgumentKind::kList && depth < kMaxListDepth) {
      put('[');
      result_types(graph_.list(result), depth + 1);
      put(']');
    } else {
      put("None");
    }
  }
}

// Each part is left out when it is what parse() would assume.
void TextWriter::type(ValueId id) {
  if (id.index >= graph_.value_capacity() || !graph_.in_bounds(graph_.value(id))) return put('?');
  const Value& value = graph_.value(id);
  switch (value.kind) {
    case ValueKind::kTensor:
      break;
    case ValueKind::kInt:
      return put("int");
    case ValueKind::kFloat:
      return put("float");
    case ValueKind::kBool:
      return put("bool");
  }
  put(dtype_word(value.dtype));
  put('[');
  ints(graph_.sizes(id));
  put(']');
  // Shape and dtype are what people ask for; strides, storage and device come with the long forms.
  if (preset_ == PrintPreset::kShort) return;
  if (!has_contiguous_strides(graph_.sizes(id), graph_.strides(id))) {
    put('{');
    ints(graph_.strides(id));
    put('}');
  }
  // Only canonical text has storages: other presets say what a tensor is, not where it lies.
  const bool canonical = preset_ == PrintPreset::kCanonical;
  const bool has_storage = value.storage.index < graph_.storage_count();
  if (canonical && (value.storage.valid() || value.offset != 0)) {
    put(" @");
    if (value.storage.valid()) {
      number('s', numbering_.of(value.storage));
    } else {
      put("none");
    }
  }
  if (value.offset != 0) {
    put('+');
    append_int(out_, value.offset);
  }
  // The storage's line has the device already, unless the value claims another one.
  if (!has_storage || graph_.storage(value.storage).device() != value.device() || !canonical) {
    put(' ');
    append_device(out_, value.device());
  }
  if (value.layout != c10::Layout::Strided) {
    put(' ');
    put(layout_word(value.layout));
  }
  if (value.requires_grad) put(" grad");
}

}  // namespace shadowgraph
