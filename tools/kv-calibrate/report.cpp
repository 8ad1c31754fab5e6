#include <algorithm>
#include <cmath>

#include "calibrate.h"
#include "common/xml_text.h"

namespace hetero::tool {
namespace {

// KL of a row where the held-out texts count first, since no choice was made on them.
const kv::DriftFigures& headline(const Row& row) { return row.held_out ? *row.held_out : *row.calibration; }

std::string csv_figures(const std::optional<kv::DriftFigures>& f) {
    if (!f) return ",,,,,,";
    return fmt::format("{},{},{},{},{},{},{}", f->positions, f->kl_mean, f->kl_max, f->dp_mean, f->dp_p99, f->dp_max,
                       f->top1);
}

}  // namespace

std::string to_markdown(const std::vector<Row>& rows, double epsilon) {
    std::string out = fmt::format(
        "| format | bits/value | positions | KL mean | KL max | E_p p99 | E_p max | E_p <= {}, all texts | top-1 | KL held out |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n",
        epsilon);
    for (const Row& row : rows) {
        const kv::DriftFigures& f = *row.calibration;
        out += fmt::format("| {} | {:.3f} | {} | {:.2e} | {:.2e} | {:.4f} | {:.4f} | {:.2f} % | {:.2f} % | {} |\n",
                           row.name, row.bits, f.positions, f.kl_mean, f.kl_max, f.dp_p99, f.dp_max, 100 * row.inside(),
                           100 * f.top1, row.held_out ? fmt::format("{:.2e}", row.held_out->kl_mean) : "");
    }
    return out;
}

std::string to_csv(const std::vector<Row>& rows, double epsilon) {
    std::string out = fmt::format(
        "format,searched,bits_per_value,inside_{},positions,kl_mean,kl_max,dp_mean,dp_p99,dp_max,top1,"
        "held_out_positions,held_out_kl_mean,held_out_kl_max,held_out_dp_mean,held_out_dp_p99,held_out_dp_max,"
        "held_out_top1\n",
        epsilon);
    for (const Row& row : rows) {
        out += fmt::format("\"{}\",{},{},{},{},{}\n", row.name, row.searched ? 1 : 0, row.bits, row.inside(),
                           csv_figures(row.calibration), csv_figures(row.held_out));
    }
    return out;
}

std::string to_svg(const std::vector<Row>& rows, const std::string& title) {
    constexpr double width = 720, height = 480, left = 70, right = 20, top = 40, bottom = 50;
    double low_bits = 1e9, high_bits = 0, low = 1e9, high = -1e9;  // KL in powers of ten
    for (const Row& row : rows) {
        if (!(headline(row).kl_mean > 0)) continue;
        low_bits = std::min(low_bits, row.bits);
        high_bits = std::max(high_bits, row.bits);
        low = std::min(low, std::floor(std::log10(headline(row).kl_mean)));
        high = std::max(high, std::ceil(std::log10(headline(row).kl_mean)));
    }
    if (high_bits == 0) low_bits = 0, high_bits = 16, low = -7, high = 0;
    low_bits = std::floor(low_bits);
    high_bits = std::max(std::ceil(high_bits), low_bits + 1);
    high = std::max(high, low + 1);
    const auto x = [&](double bits) {
        return left + (bits - low_bits) / (high_bits - low_bits) * (width - left - right);
    };
    const auto y = [&](double power) { return top + (high - power) / (high - low) * (height - top - bottom); };
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n<text x=\"{2}\" y=\"22\" "
        "font-size=\"15\">{3}</text>\n",
        width, height, left, xml_text(title));
    for (double bits = low_bits; bits <= high_bits; ++bits) {
        out += fmt::format(
            "<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" "
            "text-anchor=\"middle\">{4}</text>\n",
            x(bits), top, height - bottom, height - bottom + 18, bits);
    }
    for (double power = low; power <= high; ++power) {
        out += fmt::format(
            "<path d=\"M{0} {1:.1f}H{2}\" stroke=\"#ddd\"/><text x=\"{3}\" y=\"{1:.1f}\" text-anchor=\"end\" "
            "dominant-baseline=\"middle\">1e{4}</text>\n",
            left, y(power), width - right, left - 8, power);
    }
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">bits per value, scales, zeros and kept tokens "
        "counted</text>\n"
        "<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">mean KL, nats</text>\n",
        (left + width - right) / 2, height - 12, (top + height - bottom) / 2);
    for (const Row& row : rows) {
        const double kl = headline(row).kl_mean;
        if (!(kl > 0)) continue;
        const double px = x(row.bits), py = y(std::log10(kl));
        out += fmt::format(
            "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"4\" fill=\"{2}\"><title>{3}: {4:.3f} bits, KL "
            "{5:.2e}</title></circle>"
            "<text x=\"{6:.1f}\" y=\"{7:.1f}\" font-size=\"9\">{3}</text>\n",
            px, py, row.searched ? "#c33" : "#36c", xml_text(row.name), row.bits, kl, px + 6, py - 4);
    }
    return out + "</svg>\n";
}

Json to_json(const kv::DriftFigures& figures) {
    Json out;
    out["positions"] = figures.positions;
    out["kl_mean"] = number(figures.kl_mean);
    out["kl_max"] = number(figures.kl_max);
    out["dp_mean"] = number(figures.dp_mean);
    out["dp_p99"] = number(figures.dp_p99);
    out["dp_max"] = number(figures.dp_max);
    out["top1"] = number(figures.top1);
    return out;
}

Json to_json(const std::vector<Row>& rows) {
    Json out = Json::array();
    for (const Row& row : rows) {
        Json one;
        one["format"] = row.name;
        one["searched"] = row.searched;
        one["bits_per_value"] = number(row.bits);
        one["inside"] = number(row.inside());
        one["calibration"] = to_json(*row.calibration);
        one["held_out"] = row.held_out ? to_json(*row.held_out) : Json(nullptr);
        out.push_back(std::move(one));
    }
    return out;
}

}  // namespace hetero::tool
