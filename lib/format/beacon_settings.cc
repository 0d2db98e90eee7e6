#include "lib/format/beacon_settings.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "lib/support/os_file.h"

namespace quire {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxWindow = 1 << 24;
constexpr size_t kMaxRatios = 64;
constexpr int64_t kMaxReserve = int64_t{1} << 40;

constexpr std::string_view kKeys[] = {"beacon_window",          "beacon_stride", "beacon_stride_mix", "beacon_attn",
                                      "beacon_attend_previous", "beacon_ratio",  "beacon_ratio_mix",  "beacon_param"};

Status unsupported(const JsonReader& reader, const std::string& what) {
  return Status(Code::kUnsupported, reader.what() + ": " + what);
}

Status refuse_other_variants(const Json& config, const JsonReader& reader) {
  for (const auto& [key, value] : *config.object()) {
    if (!key.starts_with("beacon_") || std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys)) continue;
    return unsupported(reader, "Activation Beacon with " + key +
                                   "; only version 1 (beacon tokens behind each window) is "
                                   "supported");
  }
  if (const Json* method = reader.find("retrieval_method")) {
    return unsupported(reader, "Activation Beacon with retrieval_method " + json_excerpt(*method));
  }
  QUIRE_ASSIGN(const bool previous, reader.boolean("beacon_attend_previous", true));
  if (!previous) return unsupported(reader, "beacon_attend_previous false");
  return {};
}

// A list with one length.
Status read_stride(const JsonReader& reader, BeaconSettings& settings) {
  const Json* list = reader.find("beacon_stride");
  settings.stride = settings.window;
  if (!list) return {};
  if (list->number())
    return unsupported(reader, "beacon_stride that is no list: the later variant of Activation Beacon");
  if (!list->array() || list->array()->size() != 1) return reader.bad("beacon_stride", "a list with one length");
  const auto stride = list->array()->front().integer(1, settings.window);
  if (!stride) {
    return reader.bad("beacon_stride", "a length from 1 to beacon_window (" + std::to_string(settings.window) + ")");
  }
  settings.stride = *stride;
  return {};
}

Status read_attention(const JsonReader& reader, BeaconSettings& settings) {
  constexpr std::string_view kNames[] = {"step-expansion", "segmentation", "full-coverage"};
  QUIRE_ASSIGN(const std::string name, reader.string("beacon_attn", std::string(kNames[0])));
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return reader.bad("beacon_attn", "step-expansion, segmentation or full-coverage");
  settings.attention = static_cast<BeaconSettings::Attention>(found - std::begin(kNames));
  return {};
}

Status read_ratios(const JsonReader& reader, BeaconSettings& settings) {
  const Json* list = reader.find("beacon_ratio");
  if (!list) {
    settings.ratios = {0, 2, 4, 8, 16, 32, 64, 128};
  } else if (!list->array() || list->array()->empty() || list->array()->size() > kMaxRatios) {
    return reader.bad("beacon_ratio", "a list of at most " + std::to_string(kMaxRatios) + " ratios");
  } else {
    for (const Json& element : *list->array()) {
      const auto ratio = element.integer(0, kMaxWindow);
      if (!ratio) return reader.bad("beacon_ratio", "ratios from 0 to " + std::to_string(kMaxWindow));
      settings.ratios.push_back(*ratio);
    }
  }
  QUIRE_ASSIGN(const std::string mix, reader.string("beacon_ratio_mix", "adapt-1024"));
  constexpr std::string_view kAdapt = "adapt-";
  if (mix == "sequence") {
    settings.mix = BeaconSettings::Mix::kSequence;
  } else if (mix.starts_with(kAdapt)) {
    const char* const end = mix.data() + mix.size();
    const auto [stop, error] = std::from_chars(mix.data() + kAdapt.size(), end, settings.reserve);
    if (error != std::errc() || stop != end || settings.reserve < 0 || settings.reserve > kMaxReserve) {
      return reader.bad("beacon_ratio_mix", "adapt-N with a number of tokens up to " + std::to_string(kMaxReserve));
    }
  } else if (mix != "step-random" && mix != "instance-random") {
    return reader.bad("beacon_ratio_mix", "adapt-N, sequence, step-random or instance-random");
  }
  // A ratio that does not divide the stride leaves a rest that nothing condenses: it is no choice.
  const size_t given = settings.ratios.size();
  std::erase_if(settings.ratios, [&](int64_t r) { return r > 0 && (r > settings.stride || settings.stride % r != 0); });
  if (settings.ratios.empty() || (mix == "sequence" && settings.ratios.size() < given)) {
    return reader.bad("beacon_ratio",
                      "ratios that divide the stride of " + std::to_string(settings.stride) + " tokens");
  }
  return {};
}

Status read_parameters(const JsonReader& reader, BeaconSettings& settings) {
  const Json* list = reader.find("beacon_param");
  if (!list) {
    settings.q = settings.k = settings.v = settings.o = true;
    return {};
  }
  if (!list->array()) return reader.bad("beacon_param", "a list of q, k, v, o and mlp");
  const std::pair<std::string_view, bool*> known[] = {
      {"q", &settings.q}, {"k", &settings.k}, {"v", &settings.v}, {"o", &settings.o}, {"mlp", &settings.mlp}};
  for (const Json& name : *list->array()) {
    const auto* found = std::find_if(std::begin(known), std::end(known),
                                     [&](const auto& k) { return name.string() && *name.string() == k.first; });
    if (found == std::end(known)) return reader.bad("beacon_param", "a list of q, k, v, o and mlp");
    *found->second = true;
  }
  return {};
}

}  // namespace

Result<BeaconSettings> read_beacon_settings(const Json& config, const JsonReader& reader) {
  BeaconSettings settings;
  const bool any = std::any_of(config.object()->begin(), config.object()->end(),
                               [](const auto& member) { return member.first.starts_with("beacon_"); });
  if (!any) return settings;
  QUIRE_TRY(refuse_other_variants(config, reader));
  QUIRE_ASSIGN(settings.window, reader.integer("beacon_window", 1, kMaxWindow, 1024));
  QUIRE_TRY(read_stride(reader, settings));
  QUIRE_TRY(read_attention(reader, settings));
  QUIRE_TRY(read_ratios(reader, settings));
  QUIRE_TRY(read_parameters(reader, settings));
  return settings;
}

Result<BeaconSettings> load_beacon_settings(const std::string& directory) {
  const std::string path = directory + "/config.json";
  QUIRE_ASSIGN(const std::string text, read_text_file(path, kMaxConfigBytes));
  QUIRE_ASSIGN(const Json config, parse_json_object(text, path));
  QUIRE_ASSIGN(BeaconSettings settings, read_beacon_settings(config, JsonReader(config, path)));
  if (settings.window > 0) return settings;
  return Status(Code::kBadFile, path + ": no beacon_* keys; a beacon plug-in is expected");
}

}  // namespace quire
