#include "io/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/printable.h"

namespace hetero::io {
namespace {

// What nlohmann's SAX parser calls. Every event that a derived class does not expect is an error with a place and a
// reason.
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
public:
    [[nodiscard]] const std::string& message() const { return message_; }

    bool null() override { return refuse("null"); }
    bool boolean(bool) override { return refuse("a boolean"); }
    bool number_integer(number_integer_t value) override {
        return refuse(fmt::format("the negative number {}", value));
    }
    bool number_unsigned(number_unsigned_t value) override { return refuse(fmt::format("the number {}", value)); }
    bool number_float(number_float_t, const string_t& text) override {
        return refuse(fmt::format("the number {}", text));
    }
    bool string(string_t&) override { return refuse("a string"); }
    bool binary(binary_t&) override { return refuse("binary data"); }
    bool start_object(std::size_t) override { return refuse("an object"); }
    bool key(string_t& name) override { return refuse(fmt::format("the key '{}'", name)); }
    bool end_object() override { return refuse("the end of an object"); }
    bool start_array(std::size_t) override { return refuse("an array"); }
    bool end_array() override { return refuse("the end of an array"); }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
        return stop(fmt::format("is not valid JSON at byte {}", position));
    }

protected:
    virtual bool refuse(const std::string& found) = 0;
    bool stop(const std::string& message) {
        if (message_.empty()) message_ = printable(message, 300);  // names in it come from the file
        return false;
    }

private:
    std::string message_;
};

class HeaderReader final : public JsonReader {
public:
    std::vector<HeaderTensor> tensors;

    bool start_object(std::size_t) override {
        switch (state_) {
            case State::begin:
                state_ = State::names;
                return true;
            case State::entry_value:
                state_ = State::fields;
                return true;
            case State::metadata_value:
                state_ = State::metadata;
                return true;
            default:
                return refuse("an object");
        }
    }
    bool end_object() override {
        switch (state_) {
            case State::names:
                state_ = State::end;
                return true;
            case State::metadata:
                state_ = State::names;
                return true;
            case State::fields:
                if (!has_dtype_ || !has_shape_ || !has_offsets_) {
                    return stop(fmt::format("tensor '{}' lacks {}", tensors.back().name,
                                            !has_dtype_   ? "dtype"
                                            : !has_shape_ ? "shape"
                                                          : "data_offsets"));
                }
                state_ = State::names;
                return true;
            default:
                return refuse("the end of an object");
        }
    }
    bool key(string_t& name) override {
        switch (state_) {
            case State::names:
                return begin_entry(name);
            case State::metadata:
                return true;
            case State::fields:
                return begin_field(name);
            default:
                return refuse(fmt::format("the key '{}'", name));
        }
    }
    bool string(string_t& value) override {
        if (state_ == State::metadata) return true;
        if (state_ != State::dtype) return refuse("a string");
        tensors.back().dtype = value;
        state_ = State::fields;
        return true;
    }
    bool start_array(std::size_t) override {
        if (state_ == State::shape) return advance(State::shape_items);
        if (state_ == State::offsets) return advance(State::offset_items);
        return refuse("an array");
    }
    bool end_array() override {
        if (state_ == State::shape_items) return advance(State::fields);
        if (state_ != State::offset_items) return refuse("the end of an array");
        if (n_offsets_ != 2)
            return stop(fmt::format("tensor '{}' has {} data_offsets, 2 are needed", tensors.back().name, n_offsets_));
        return advance(State::fields);
    }
    bool number_unsigned(number_unsigned_t value) override {
        if (state_ == State::shape_items) {
            constexpr std::size_t max_dims = 64;
            if (tensors.back().shape.size() == max_dims)
                return stop(fmt::format("tensor '{}' has more than {} dimensions", tensors.back().name, max_dims));
            tensors.back().shape.push_back(value);
            return true;
        }
        if (state_ != State::offset_items) return refuse(fmt::format("the number {}", value));
        if (n_offsets_ < 2) (n_offsets_ == 0 ? tensors.back().begin : tensors.back().end) = value;
        ++n_offsets_;
        return true;
    }

private:
    enum class State {
        begin,
        names,
        entry_value,
        metadata_value,
        metadata,
        fields,
        dtype,
        shape,
        shape_items,
        offsets,
        offset_items,
        end
    };

    bool refuse(const std::string& found) override {
        if (tensors.empty()) return stop(fmt::format("has {} where its table of tensors is expected", found));
        return stop(
            fmt::format("has {} where it is not expected, in or after tensor '{}'", found, tensors.back().name));
    }
    bool advance(State state) {
        state_ = state;
        return true;
    }
    bool begin_entry(const std::string& name) {
        if (!names_.insert(name).second) return stop(fmt::format("'{}' is there twice", name));
        if (name == "__metadata__") return advance(State::metadata_value);
        tensors.push_back({name, {}, {}, 0, 0});
        has_dtype_ = has_shape_ = has_offsets_ = false;
        n_offsets_ = 0;
        return advance(State::entry_value);
    }
    bool begin_field(const std::string& name) {
        if (name == "dtype" && !std::exchange(has_dtype_, true)) return advance(State::dtype);
        if (name == "shape" && !std::exchange(has_shape_, true)) return advance(State::shape);
        if (name == "data_offsets" && !std::exchange(has_offsets_, true)) return advance(State::offsets);
        return stop(fmt::format("tensor '{}' has the field '{}', unknown or there twice", tensors.back().name, name));
    }

    State state_ = State::begin;
    std::set<std::string> names_;
    bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
    int n_offsets_ = 0;
};

class IndexReader final : public JsonReader {
public:
    WeightMap weight_map;
    bool has_weight_map = false;

    bool null() override { return other_value("null"); }
    bool boolean(bool) override { return other_value("a boolean"); }
    bool number_integer(number_integer_t) override { return other_value("a number"); }
    bool number_unsigned(number_unsigned_t) override { return other_value("a number"); }
    bool number_float(number_float_t, const string_t&) override { return other_value("a number"); }
    bool string(string_t& value) override {
        if (!in_map_) return other_value("a string");
        const bool control =
            std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
        if (value.empty() || value == "." || value == ".." || value.find('/') != string_t::npos || control) {
            return stop(
                fmt::format("places tensor '{}' in '{}', which is not the plain name of a file", tensor_, value));
        }
        if (!weight_map.emplace(tensor_, value).second) return stop(fmt::format("places tensor '{}' twice", tensor_));
        return true;
    }
    bool start_object(std::size_t) override {
        if (in_map_) return refuse("an object");
        if (++depth_ == 2 && map_follows_) in_map_ = has_weight_map = true;
        map_follows_ = false;
        return true;
    }
    bool end_object() override {
        if (in_map_) in_map_ = false;
        --depth_;
        return true;
    }
    bool key(string_t& name) override {
        if (in_map_) tensor_ = name;
        map_follows_ = depth_ == 1 && name == "weight_map";
        if (map_follows_ && has_weight_map) return stop("has two weight_maps");
        return true;
    }
    bool start_array(std::size_t) override {
        if (in_map_ || map_follows_ || depth_ == 0) return refuse("an array");
        ++depth_;
        return true;
    }
    bool end_array() override {
        --depth_;
        return true;
    }

private:
    bool refuse(const std::string& found) override {
        return stop(fmt::format("has {} where it is not expected", found));
    }
    bool other_value(const std::string& found) { return in_map_ || map_follows_ || depth_ == 0 ? refuse(found) : true; }

    std::string tensor_;
    std::size_t depth_ = 0;
    bool map_follows_ = false;
    bool in_map_ = false;
};

template <class Reader>
Status parse(std::string_view json, Reader& reader, const std::string& path, std::string_view what) {
    // The parser throws only for events that a reader does not take; its own limits and a reader's come back as false.
    try {
        if (nlohmann::json::sax_parse(json.begin(), json.end(), &reader) && reader.message().empty()) return {};
    } catch (const nlohmann::json::exception&) {
        return fail(Errc::bad_input, "{}: {} is not valid JSON", path, what);
    }
    return fail(Errc::bad_input, "{}: {} {}", path, what,
                reader.message().empty() ? "is not valid JSON" : reader.message());
}

}  // namespace

Result<std::vector<HeaderTensor>> parse_safetensors_header(std::string_view json, const std::string& path) {
    if (!json.starts_with('{')) return fail(Errc::bad_input, "{}: safetensors header does not start with '{{'", path);
    HeaderReader reader;
    HETERO_CHECK(parse(json, reader, path, "safetensors header"));
    return std::move(reader.tensors);
}

Result<WeightMap> parse_safetensors_index(std::string_view json, const std::string& path) {
    IndexReader reader;
    HETERO_CHECK(parse(json, reader, path, "index"));
    if (!reader.has_weight_map) return fail(Errc::bad_input, "{}: index has no weight_map", path);
    if (reader.weight_map.empty()) return fail(Errc::bad_input, "{}: index has an empty weight_map", path);
    return std::move(reader.weight_map);
}

}  // namespace hetero::io
