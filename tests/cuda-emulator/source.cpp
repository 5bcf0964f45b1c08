#include "source.hpp"

#include <algorithm>
#include <cctype>

namespace {

struct Token {
    size_t begin, end;
    std::string text;
};

bool word_character(char c) { return isalnum((unsigned char)c) || c == '_'; }

size_t end_of_quoted(const std::string& text, size_t at) {
    char quote = text[at++];
    while (at < text.size() && text[at] != quote && text[at] != '\n') at += text[at] == '\\' ? 2 : 1;
    return std::min(at + 1, text.size());
}

size_t end_of_raw_string(const std::string& text, size_t at) {
    size_t open = text.find('(', at);
    if (open == std::string::npos) return text.size();
    std::string close = ")" + text.substr(at + 2, open - at - 2) + "\"";
    size_t end = text.find(close, open);
    return end == std::string::npos ? text.size() : end + close.size();
}

// Words, literals and single characters; the line directives of the preprocessor are no tokens.
std::vector<Token> tokens_of(const std::string& text) {
    std::vector<Token> tokens;
    bool line_begins = true;
    for (size_t at = 0; at < text.size();) {
        char c = text[at];
        size_t end = at + 1;
        if (c == '\n') {
            line_begins = true;
            at = end;
            continue;
        }
        if (isspace((unsigned char)c)) {
            at = end;
            continue;
        }
        if (c == '#' && line_begins) {
            at = std::min(text.find('\n', at), text.size());
            continue;
        }
        line_begins = false;
        if (c == 'R' && end < text.size() && text[end] == '"') {
            end = end_of_raw_string(text, at);
        } else if (c == '"' || c == '\'') {
            end = end_of_quoted(text, at);
        } else if (word_character(c)) {
            while (end < text.size() && word_character(text[end])) end++;
        }
        tokens.push_back({at, end, text.substr(at, end - at)});
        at = end;
    }
    return tokens;
}

struct Reader {
    const std::vector<Token>& tokens;

    bool is(size_t i, const char* text) const { return i < tokens.size() && tokens[i].text == text; }

    // After the parenthesis that closes the one at `i`.
    size_t after_parentheses(size_t i) const {
        int depth = 0;
        for (; i < tokens.size(); i++) {
            if (is(i, "(")) depth++;
            if (is(i, ")") && --depth == 0) return i + 1;
        }
        return i;
    }
};

// A replacement of some bytes of the text.
struct Change {
    size_t begin, end;
    std::string by;
};

std::string apply(const std::string& text, const std::vector<Change>& changes) {
    std::string result;
    size_t at = 0;
    for (const Change& change : changes) {
        result.append(text, at, change.begin - at);
        result += change.by;
        // Lines stay where they are.
        result.append(size_t(std::count(text.begin() + long(change.begin), text.begin() + long(change.end), '\n')), '\n');
        at = change.end;
    }
    return result.append(text, at, std::string::npos);
}

enum class Scope { Namespace, CLinkage, Other };

class Scan {
  public:
    explicit Scan(const std::string& text) : text(text), tokens(tokens_of(text)), reader{tokens} {}

    Prepared run() {
        for (size_t i = 0; i < tokens.size();) i = look_at(i);
        return {apply(text, changes), kernels};
    }

  private:
    const std::string& text;
    std::vector<Token> tokens;
    Reader reader;
    std::vector<Change> changes;
    std::vector<KernelName> kernels;
    std::vector<Scope> scopes;
    size_t declaration = 0; // the first token of the declaration that is being read

    void remove(size_t first, size_t end, std::string by = "") { changes.push_back({tokens[first].begin, tokens[end - 1].end, std::move(by)}); }

    size_t look_at(size_t i) {
        if (reader.is(i, "{")) {
            scopes.push_back(scope_that_begins(i));
            declaration = i + 1;
        } else if (reader.is(i, "}")) {
            if (!scopes.empty()) scopes.pop_back();
            declaration = i + 1;
        } else if (reader.is(i, ";")) {
            declaration = i + 1;
        } else if (reader.is(i, "__global__")) {
            remove(i, i + 1);
            find_kernel(i);
        } else if (reader.is(i, "__launch_bounds__")) {
            size_t end = reader.after_parentheses(i + 1);
            remove(i, end);
            return end;
        } else if (reader.is(i, "extern") && reader.is(i + 1, "__shared__")) {
            return dynamic_shared(i);
        } else if (reader.is(i, "__shared__")) {
            bool has_static = i > 0 && reader.is(i - 1, "static");
            remove(i, i + 1, std::string(has_static ? "" : "static ") + "__attribute__((section(\"emulator_shared\")))");
        }
        return i + 1;
    }

    Scope scope_that_begins(size_t brace) const {
        if (brace >= 2 && reader.is(brace - 2, "extern") && reader.is(brace - 1, "\"C\"")) return Scope::CLinkage;
        for (size_t i = declaration; i < brace; i++)
            if (reader.is(i, "namespace")) return Scope::Namespace;
        return Scope::Other;
    }

    bool has_c_linkage(size_t global) const {
        for (size_t i = declaration; i < global; i++)
            if (reader.is(i, "extern") && reader.is(i + 1, "\"C\"")) return true;
        return std::find(scopes.begin(), scopes.end(), Scope::CLinkage) != scopes.end();
    }

    // After `__global__`: the name is the word before the first parenthesis that is no attribute's.
    void find_kernel(size_t global) {
        KernelName kernel{"", "1024"};
        size_t i = global + 1;
        while (i < tokens.size() && !reader.is(i, ";") && !reader.is(i, "{")) {
            bool bounds = reader.is(i, "__launch_bounds__");
            if (bounds || reader.is(i, "__attribute__") || reader.is(i, "__declspec") || reader.is(i, "alignas")) {
                size_t end = reader.after_parentheses(i + 1);
                if (bounds && end > i + 3) kernel.max_threads = first_argument(i + 2, end - 1);
                i = end;
                continue;
            }
            if (reader.is(i, "(")) break;
            kernel.name = tokens[i++].text;
        }
        if (!reader.is(i, "(")) return;
        bool definition = reader.is(reader.after_parentheses(i), "{");
        if (definition && has_c_linkage(global)) kernels.push_back(kernel);
    }

    std::string first_argument(size_t begin, size_t end) const {
        int depth = 0;
        std::string argument;
        for (size_t i = begin; i < end && !(depth == 0 && reader.is(i, ",")); i++) {
            depth += reader.is(i, "(") - reader.is(i, ")");
            argument += tokens[i].text + " ";
        }
        return argument;
    }

    // extern __shared__ TYPE NAME[];
    size_t dynamic_shared(size_t first) {
        std::vector<std::string> words;
        size_t i = first + 2;
        while (i < tokens.size() && !reader.is(i, "[") && !reader.is(i, ";")) {
            if (reader.is(i, "__attribute__") || reader.is(i, "alignas")) i = reader.after_parentheses(i + 1);
            else words.push_back(tokens[i++].text);
        }
        if (words.size() < 2 || !reader.is(i, "[") || !reader.is(i + 1, "]") || !reader.is(i + 2, ";")) {
            return first + 1; // no declaration of that kind: the compiler will say so
        }
        std::string name = words.back(), type;
        for (size_t w = 0; w + 1 < words.size(); w++) type += words[w] + " ";
        bool inside = std::find(scopes.begin(), scopes.end(), Scope::Other) != scopes.end();
        remove(first, i + 3,
               inside ? type + "* const " + name + " = reinterpret_cast<" + type + "*>(emulator_state.dynamic_shared);"
                      : "static EmulatorDynamicShared<" + type + "> " + name + ";");
        declaration = i + 3;
        return i + 3;
    }
};

} // namespace

Prepared prepare(const std::string& preprocessed) { return Scan(preprocessed).run(); }
