// What holds for the documents of any machine.
#include <toml++/toml.h>

#include "hw/section.h"
#include "unit/hw/support.h"

using namespace hetero;
using namespace hetero::test;

namespace {

constexpr std::string_view unknown_suffix = "_unknown";

// Every null has a reason beside it, every reason a null.
void check_reasons(const Json& node, const std::string& path) {
    if (node.is_array()) {
        for (const Json& item : node) check_reasons(item, path + "[]");
        return;
    }
    if (!node.is_object()) return;
    for (const auto& [key, value] : node.items()) {
        CAPTURE(path);
        CAPTURE(key);
        if (value.is_null()) {
            const std::string reason_key = key + std::string(unknown_suffix);
            REQUIRE(node.contains(reason_key));
            CHECK_FALSE(node[reason_key].get<std::string>().empty());
        }
        if (key.ends_with(unknown_suffix)) {
            CHECK(node[key.substr(0, key.size() - unknown_suffix.size())].is_null());
        }
        check_reasons(value, path + "." + key);
    }
}

// "" where the TOML document holds what the JSON document does, nulls left out; else the path of the first difference.
std::string difference(const Json& json, const toml::node& toml_node, const std::string& path) {
    if (json.is_object()) {
        const toml::table* table = toml_node.as_table();
        if (table == nullptr) return path;
        std::size_t present = 0;
        for (const auto& [key, value] : json.items()) {
            const std::string name = path + "." + key;
            if (value.is_null()) {
                if (table->contains(key)) return name;
                continue;
            }
            ++present;
            const toml::node* found = table->get(key);
            if (found == nullptr) return name;
            if (const std::string below = difference(value, *found, name); !below.empty()) return below;
        }
        return present == table->size() ? "" : path + " (size)";
    }
    if (json.is_array()) {
        const toml::array* array = toml_node.as_array();
        if (array == nullptr || array->size() != json.size()) return path;
        for (std::size_t i = 0; i < json.size(); ++i) {
            const std::string below = difference(json[i], *array->get(i), path + "[" + std::to_string(i) + "]");
            if (!below.empty()) return below;
        }
        return "";
    }
    bool equal = false;
    if (json.is_string()) equal = toml_node.value<std::string>() == json.get<std::string>();
    if (json.is_boolean()) equal = toml_node.is_boolean() && toml_node.value<bool>() == json.get<bool>();
    if (json.is_number_integer())
        equal = toml_node.is_integer() && toml_node.value<std::int64_t>() == json.get<std::int64_t>();
    if (json.is_number_float())
        equal = toml_node.is_floating_point() && toml_node.value<double>() == json.get<double>();
    return equal ? "" : path;
}

void check_equal(const Json& json, const std::string& toml_text) {
    const toml::table table = toml::parse(toml_text);  // throws, and so fails the test, where it is no TOML
    CHECK(difference(json, table, "") == "");
}

}  // namespace

TEST_CASE("this machine without measuring: reasons, and the same content as TOML") {
    hw::ProbeOptions options;
    options.measure = false;
    const hw::ProfileTexts found = profile(options);
    const Json document = Json::parse(found.json);
    check_reasons(document, "");
    check_equal(document, found.toml);
    CHECK(document["profile_schema"] == 2);
    CHECK(document["cpu"]["cpus_online"] > 0);
    CHECK(document["cpu"]["cpus_allowed"] <= document["cpu"]["cpus_online"]);
    CHECK(document["cpu"]["threads_default"] > 0);
    CHECK(document["memory"]["memory_usable_bytes"] <= document["memory"]["memory_total_bytes"]);
    CHECK(document["memory"]["memory_available_bytes"] <= document["memory"]["memory_total_bytes"]);
    CHECK(document["memory_bandwidth"]["rates_unknown"] == "not measured: measuring was turned off");
    CHECK(document["disk"]["free_bytes"] <= document["disk"]["total_bytes"]);
    CHECK(document["stages"].is_null());
    CHECK(document["stages_unknown"] == "no model was given (--model)");
    for (const char* side : {"nvml", "cuda"}) {
        const Json& devices = document["gpus"][side]["devices"];
        CHECK((devices.is_array() || !document["gpus"][side]["devices_unknown"].get<std::string>().empty()));
    }
    CHECK(found.summary.find(document["cpu"]["kernel_backend"].get<std::string>()) != std::string::npos);
}

TEST_CASE("measured rates are there and positive, for every type that runs") {
    const TempDir folder;
    hw::ProbeOptions options;
    options.seconds_each = 0.02;
    options.quick = true;
    options.threads = 2;
    options.disk_path = folder.path();
    const hw::ProfileTexts found = profile(options);
    const Json document = Json::parse(found.json);
    check_reasons(document, "");
    check_equal(document, found.toml);
    REQUIRE(document["memory_bandwidth"]["rates"].size() == 2);
    for (const Json& rate : document["memory_bandwidth"]["rates"]) {
        CHECK(rate["read_gb_per_s"] > 0);
        CHECK(rate["triad_gb_per_s"] > 0);
    }
    CHECK(document["memory_bandwidth"]["rates"][1]["threads"] == 2);
    int fast = 0, precise = 0, lacking = 0;
    for (const Json& rate : document["compute"]["rates"]) {
        CAPTURE(rate.dump());
        if (rate["executable"] == false) {
            ++lacking;
            CHECK_FALSE(rate["unsupported"].get<std::string>().empty());
            CHECK_FALSE(rate.contains("gemm_gflop_per_s"));
            CHECK(rate["dtype"].get<std::string>().starts_with("fp"));
            continue;
        }
        ++(rate["path"] == "fast" ? fast : precise);
        CHECK(rate["gemm_gflop_per_s"] > 0);
        CHECK(rate["gemv_gb_per_s"] > 0);
        CHECK(rate["bytes_per_weight"] > 0.5);
        CHECK((rate["path"] == "precise" || !rate["batch_tokens"].empty()));
    }
    CHECK(fast == 2 * 5);  // with one thread and with two; f32 is not packed
    CHECK(precise == 2 * 6);
    CHECK(lacking == 2);
    REQUIRE(document["attention"]["rates"].size() == 2 * 2 * 4);
    for (const Json& rate : document["attention"]["rates"]) {
        CAPTURE(rate.dump());
        CHECK(rate["executable"] == true);
        CHECK(rate["prefill_gflop_per_s"] > 0);
        CHECK(rate["decode_gb_per_s"] > 0);
    }
    REQUIRE(document["kv_codecs"]["rates"].size() == 2 * 6);
    for (const Json& rate : document["kv_codecs"]["rates"]) {
        CAPTURE(rate.dump());
        CHECK(rate["executable"] == true);
        CHECK(rate["encode_gb_per_s"] > 0);
        CHECK(rate["decode_gb_per_s"] > 0);
        CHECK(rate["stored_ratio"] < 0.6);
    }
    CHECK(document["shm"]["path"] == "/dev/shm");
    CHECK(document["clock"]["clock_read_ns"] > 0);
    CHECK(document["disk"]["write_gb_per_s"] > 0);
    CHECK(document["disk"]["read_gb_per_s"] > 0);
    CHECK(std::filesystem::is_empty(folder.path()));  // the disk probe leaves nothing behind
}

TEST_CASE("a disk folder that is not there has a reason, the rest of the profile stands") {
    hw::ProbeOptions options;
    options.measure = false;
    options.disk_path = "/nowhere/at/all";
    const Json document = Json::parse(profile(options).json);
    check_reasons(document, "");
    CHECK(document["disk"]["write_gb_per_s"].is_null());
    CHECK(document["disk"]["free_bytes_unknown"] == "No such file or directory");
    CHECK(document["cpu"]["cpus_online"] > 0);
}

TEST_CASE("options out of range are usage errors") {
    for (double seconds : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
        hw::ProbeOptions options;
        options.seconds_each = seconds;
        const auto result = hw::probe(options);
        REQUIRE_FALSE(result.has_value());
        CHECK(result.error().code == Errc::usage);
    }
    hw::ProbeOptions options;
    options.threads = -1;
    CHECK_FALSE(hw::probe(options).has_value());
}

TEST_CASE("TOML: any key and text can be read back") {
    const Json document = {{"plain", 1},
                           {"with space", "a \"quote\", a \\, a\ttab\nand \x01\x7F"},
                           {"", "empty key"},
                           {"utf", "\u00fc\u4e2d"},
                           {"big", 9007199254740993},
                           {"real", 12.0},
                           {"small", 1e-9},
                           {"large", 1e300},
                           {"none", nullptr},
                           {"empty", Json::array()},
                           {"numbers", {1, 2, 3}},
                           {"table", {{"x", true}, {"inner table", {{"y", -1}}}}},
                           {"list", Json::array({{{"a", 1}, {"b", Json::array({{{"c", "d"}}})}}, {{"a", nullptr}}})}};
    check_equal(document, hw::to_toml(document));
}

TEST_CASE("rounding keeps four digits") {
    CHECK(hw::rounded(123456.0) == 123500.0);
    CHECK(hw::rounded(1.23456) == 1.235);
    CHECK(hw::rounded(-0.000123456) == doctest::Approx(-0.0001235).epsilon(1e-12));
    CHECK(hw::rounded(0) == 0);
}
