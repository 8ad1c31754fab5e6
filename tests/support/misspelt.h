// Keys of documents with one slip of the pen.
#pragma once
#include <cctype>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace hetero::test {

struct Slip {
    std::string key, text;  // the sound key; the document with that one key misspelt
};

// One for each key, which is a word of small letters, digits and underscores between `before` and `after`.
inline std::vector<Slip> misspelt(const std::string& sound, const std::string& before, const std::string& after,
                                  unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Slip> out;
    for (std::size_t at = sound.find(before); at != std::string::npos; at = sound.find(before, at + 1)) {
        const std::size_t begin = at + before.size();
        std::size_t end = begin;
        while (end < sound.size() && (std::islower(static_cast<unsigned char>(sound[end])) != 0 ||
                                      std::isdigit(static_cast<unsigned char>(sound[end])) != 0 || sound[end] == '_'))
            ++end;
        if (end - begin < 3 || sound.compare(end, after.size(), after) != 0) continue;
        const std::string key = sound.substr(begin, end - begin);
        std::string slip = key;
        const std::size_t place = 1 + random() % (key.size() - 2);
        switch (random() % 4) {
            case 0:
                slip.erase(place, 1);
                break;
            case 1:
                slip.insert(place, 1, slip[place]);
                break;
            case 2:
                std::swap(slip[place], slip[place + 1]);
                break;
            default:
                slip[place] = slip[place] == 'x' ? 'y' : 'x';
        }
        if (slip != key) out.push_back({key, sound.substr(0, begin) + slip + sound.substr(end)});
    }
    return out;
}

}  // namespace hetero::test
