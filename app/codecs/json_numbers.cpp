// Reads JSON bodies of regular floats into one buffer. numbers.py defines these bodies, and reads all others.
//
// The body is a bytes object, so a NUL follows its last octet. Reading one octet needs no check for the end, because
// every step forward passes an octet that is not NUL. Nothing recurses. In a regular body the number of commas gives
// the number of numbers: the buffer is allocated once, in that size, and the list sizes bound what is written into it.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cfloat>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>

static_assert(std::numeric_limits<double>::is_iec559 && std::numeric_limits<float>::is_iec559 && FLT_EVAL_METHOD == 0,
              "doubles are rounded once");

namespace {

constexpr int MOST_AXES = 64;  // of numpy
// Up to here every whole number is exact as a double: MAX_EXACT in numbers.py.
constexpr uint64_t MOST_EXACT = (uint64_t{1} << 53) - 1;
constexpr int MOST_TENS = 22;    // powers of ten are exact as doubles up to this one
constexpr int MOST_FIVES = 288;  // up to this power of five, the power of two that `divide` multiplies by is normal
// Up to here a division is faster than a product of 192 bits.
constexpr int SHORT_TENS = 12;

using Wide = unsigned __int128;

struct Tables {
    double ten[MOST_TENS + 1] = {1};
    uint64_t shift[9] = {1};  // 10**n
    uint64_t room[9] = {};    // a 64-bit number below this has room for n more digits
    // 5**-n, truncated to 128 bits with the first bit set: fifth[n] * 2**(-127 - below[n]). Each step adds less than
    // 2**-127 to the relative error, so fifth[n] is too small by less than 2 * 288 = 576.
    Wide fifth[MOST_FIVES + 1] = {Wide{1} << 127};
    int below[MOST_FIVES + 1] = {};
    constexpr Tables() {
        for (int n = 1; n <= MOST_TENS; ++n) ten[n] = ten[n - 1] * 10;
        for (int n = 1; n <= 8; ++n) shift[n] = shift[n - 1] * 10;
        for (int n = 0; n <= 8; ++n) room[n] = std::numeric_limits<uint64_t>::max() / shift[n];
        for (int n = 1; n <= MOST_FIVES; ++n) {
            const Wide whole = fifth[n - 1] / 5, rest = fifth[n - 1] % 5;
            const int bits = whole >> 125 ? 2 : 3;
            fifth[n] = (whole << bits) + (rest << bits) / 5;
            below[n] = below[n - 1] + bits;
        }
    }
};
constexpr Tables TABLES;

inline bool is_digit(char octet) { return static_cast<unsigned char>(octet - '0') <= 9; }

inline const char *skip_blanks(const char *at) {
    while (static_cast<unsigned char>(*at) <= ' ' && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) ++at;
    return at;
}

// Skips an octet and the blanks after it; false if the octet is another one.
inline bool take(const char *&at, char octet) {
    if (*at != octet) return false;
    at = skip_blanks(at + 1);
    return true;
}

// The next eight octets: digits become their values, and the first is the lowest octet. `other` is not 0 if some are
// not digits; its lowest set bit is the highest bit of the first non-digit.
inline uint64_t load_eight(const char *at, const char *end, uint64_t &other) {
    uint64_t word = 0;
    if (__builtin_expect(end - at >= 8, 1))
        std::memcpy(&word, at, 8);
    else
        std::memcpy(&word, at, static_cast<size_t>(end - at));
    if constexpr (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) word = __builtin_bswap64(word);
    word ^= 0x3030303030303030;
    // A carry affects only octets after one that is above 9.
    other = ((word + 0x7676767676767676) | word) & 0x8080808080808080;
    return word;
}

// The number that eight digits represent.
inline uint64_t value_of_eight(uint64_t word) {
    word = word * 10 + (word >> 8);  // every other octet: a pair of digits
    constexpr uint64_t pairs = 0x000000FF000000FF;
    const uint64_t outer = (word & pairs) * (100 + (uint64_t{1000000} << 32));
    const uint64_t inner = (word >> 16 & pairs) * (1 + (uint64_t{10000} << 32));
    return (outer + inner) >> 32;
}

// Appends the digits from here on to `digits`, if the result fits into 64 bits.
inline void take_digits(const char *&at, const char *end, uint64_t &digits, bool &fits) {
    for (;;) {
        uint64_t other;
        uint64_t word = load_eight(at, end, other);
        const int count = other ? __builtin_ctzll(other) / 8 : 8;
        if (other) word = word << 4 * (8 - count) << 4 * (8 - count);  // zeros before them; by 64 in two steps
        fits = fits && digits < TABLES.room[count];
        digits = digits * TABLES.shift[count] + value_of_eight(word);
        at += count;
        if (other) return;
    }
}

// digits / 10**tens for digits > 0 and 1 <= tens <= MOST_FIVES, rounded once; false if it may be too close to a tie.
inline bool divide(uint64_t digits, int tens, double &value) {
    const auto is_exact = [=](int most) { return digits <= MOST_EXACT && tens <= most; };
    if (!is_exact(SHORT_TENS)) {
        // The first 128 bits of digits * 5**-tens, too small by up to 2**10. The first 64 are right unless this error
        // could carry into them. The other bits are not all 0; the lowest bit of the rounded number stands for them.
        const int shift = __builtin_clzll(digits);
        const Wide fifth = TABLES.fifth[tens], left = digits << shift;
        const Wide product = left * static_cast<uint64_t>(fifth >> 64) + (left * static_cast<uint64_t>(fifth) >> 64);
        if (static_cast<uint64_t>(product) < ~uint64_t{0} << 10) {
            const int64_t bits = static_cast<int64_t>(static_cast<uint64_t>(product >> 64) >> 1 | 1);
            const uint64_t exponent = static_cast<uint64_t>(1023 + 2 - TABLES.below[tens] - shift - tens);
            const uint64_t pattern = exponent << 52;
            double power;
            std::memcpy(&power, &pattern, sizeof power);
            value = static_cast<double>(bits) * power;
            return true;
        }
        if (!is_exact(MOST_TENS)) return false;
    }
    value = static_cast<double>(digits) / TABLES.ten[tens];  // both are exact (Clinger, 1990)
    return true;
}

// Converts a number in JSON's grammar; false if the result is not known to be right.
inline bool convert(const char *begin, const char *end, double &value) {
#if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
    const auto done = std::from_chars(begin, end, value);
    return done.ec == std::errc() && done.ptr == end;
#else
    (void)begin, (void)end, (void)value;
    return false;
#endif
}

// Reads a JSON number; false if it is not one, is not within +-MOST_EXACT, or needs another reader.
[[gnu::always_inline]] inline bool read_number(const char *&at, const char *end, double &value) {
    const char *const begin = at;
    const bool negative = *at == '-';
    at += negative;
    if (!is_digit(*at)) return false;
    uint64_t digits = static_cast<uint64_t>(*at++ - '0');
    bool fits = true, whole = true;
    if (*at != '.' && digits != 0) take_digits(at, end, digits, fits);  // no digits follow a 0
    int64_t exponent = 0;
    if (*at == '.') {
        const char *const fraction = ++at;
        take_digits(at, end, digits, fits);
        if (at == fraction) return false;
        exponent = fraction - at;
        whole = false;
    }
    if (*at == 'e' || *at == 'E') {
        ++at;
        const bool below = *at == '-';
        at += below || *at == '+';
        if (!is_digit(*at)) return false;
        int64_t written = 0;
        for (; is_digit(*at); ++at)
            if (written < int64_t{1} << 56) written = written * 10 + (*at - '0');  // more than any body has digits
        exponent += below ? -written : written;
        whole = false;
    }
    if (fits && digits == 0) {
        value = negative && !whole ? -0.0 : 0.0;  // -0 is an integer
        return true;
    }
    if (fits && exponent >= 0) {
        if (digits > MOST_EXACT || exponent > MOST_TENS) return false;
        value = static_cast<double>(digits) * TABLES.ten[exponent];
    } else {
        const bool done = fits && exponent >= -MOST_FIVES && divide(digits, static_cast<int>(-exponent), value);
        if (!done && (whole || !convert(begin + negative, at, value))) return false;
    }
    if (!(value <= static_cast<double>(MOST_EXACT))) return false;
    value = negative ? -value : value;
    return true;
}

// Reads nested lists of these sizes, from the first number on; returns their end, or nullptr if the sizes differ.
template <class Number>
const char *read_lists(const char *at, const char *end, const size_t *sizes, int levels, char *out) {
    size_t taken[MOST_AXES + 1] = {};
    for (const int inner = levels - 1;;) {
        double value;
        if (!read_number(at, end, value)) return nullptr;
        const Number number = static_cast<Number>(value);  // a float is rounded twice, as in the other readers
        std::memcpy(out, &number, sizeof number);
        out += sizeof number;
        at = skip_blanks(at);
        int level = inner;
        for (; ++taken[level] == sizes[level]; --level) {
            if (!take(at, ']')) return nullptr;
            taken[level] = 0;
            if (level == 0) return at;
        }
        if (!take(at, ',')) return nullptr;
        for (; level < inner; ++level)
            if (!take(at, '[')) return nullptr;
    }
}

size_t commas(const char *at, const char *end) {
    size_t all = 0;
    while (at != end) {
        const char *const until = end - at > 240 ? at + 240 : end;
        unsigned char few = 0;  // a small counter lets the compiler compare many octets at once
        for (; at != until; ++at) few = static_cast<unsigned char>(few + (*at == ','));
        all += few;
    }
    return all;
}

struct Text {
    const char *at;
    Py_ssize_t size;
};

// Skips `"text":`; the texts contain no character that JSON would escape.
inline bool take_name(const char *&at, const char *end, Text name) {
    if (end - at < name.size + 2 || *at != '"' || std::memcmp(at + 1, name.at, static_cast<size_t>(name.size)) != 0)
        return false;
    at += name.size + 1;
    if (!take(at, '"')) return false;
    return take(at, ':');
}

struct Shape {
    size_t sizes[MOST_AXES];
    int axes = 0;
    size_t numbers = 1;  // of an item
};

struct Wanted {
    Text key, name;
    Shape shape;
    size_t most;  // items
    bool many;    // a list of items
    bool wide;    // numbers of 64 bits
};

// Returns the numbers of a body, None if another reader must read them, or nullptr with an exception.
PyObject *read_body(const char *at, const char *end, const Wanted &wanted) {
    const auto &[key, name, shape, most, many, wide] = wanted;
    at = skip_blanks(at);
    if (!take(at, '{') || !take_name(at, end, key)) Py_RETURN_NONE;
    const bool named = !many && take(at, '{');
    if (named && !take_name(at, end, name)) Py_RETURN_NONE;
    int levels = 0;
    for (; levels <= shape.axes + many && take(at, '['); ++levels) {}
    const int axes = levels - many;  // of each item as it is written
    const bool nested = axes == shape.axes && levels > 0;
    if (!nested && axes != 1) Py_RETURN_NONE;
    const size_t all = commas(at, end) + 1, items = all / shape.numbers;
    if (items * shape.numbers != all || items > most) Py_RETURN_NONE;
    size_t sizes[MOST_AXES + 1] = {items};
    if (nested)
        std::memcpy(sizes + many, shape.sizes, static_cast<size_t>(axes) * sizeof *sizes);
    else
        sizes[many] = shape.numbers;
    PyObject *const made =
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(all * (wide ? sizeof(double) : sizeof(float))));
    if (made == nullptr) return nullptr;
    char *const out = PyBytes_AsString(made);
    at = wide ? read_lists<double>(at, end, sizes, levels, out) : read_lists<float>(at, end, sizes, levels, out);
    if (at == nullptr || (named && !take(at, '}')) || !take(at, '}') || at != end) {
        Py_DECREF(made);
        Py_RETURN_NONE;
    }
    return made;
}

bool text_of(PyObject *object, Text &text) {
    text.at = PyUnicode_AsUTF8AndSize(object, &text.size);
    return text.at != nullptr;
}

bool shape_of(PyObject *tuple, Shape &shape) {
    const Py_ssize_t axes = PyTuple_Size(tuple);
    if (axes < 0) return false;
    if (axes > MOST_AXES) return PyErr_SetString(PyExc_ValueError, "too many axes"), false;
    for (; shape.axes < axes; ++shape.axes) {
        const size_t size = PyLong_AsSize_t(PyTuple_GetItem(tuple, shape.axes));
        if (PyErr_Occurred()) return false;
        if (size == 0) return PyErr_SetString(PyExc_ValueError, "an axis of size 0"), false;
        shape.sizes[shape.axes] = size;
        // An item with more numbers than a size_t can hold is never read: no body is that large.
        if (__builtin_mul_overflow(shape.numbers, size, &shape.numbers)) shape.numbers = SIZE_MAX;
    }
    return true;
}

PyObject *read(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 6) return PyErr_SetString(PyExc_TypeError, "read takes 6 arguments"), nullptr;
    char *body;
    Py_ssize_t size;
    Text key, name;
    Shape shape;
    if (PyBytes_AsStringAndSize(arguments[0], &body, &size) < 0 || !text_of(arguments[1], key) ||
        !text_of(arguments[2], name) || !shape_of(arguments[3], shape))
        return nullptr;
    const bool many = arguments[4] != Py_None;
    const size_t most = many ? PyLong_AsSize_t(arguments[4]) : 1;
    if (PyErr_Occurred()) return nullptr;
    const int wide = PyObject_IsTrue(arguments[5]);
    if (wide < 0) return nullptr;
    return read_body(body, body + size, {key, name, shape, most, many, wide != 0});
}

PyMethodDef methods[] = {
    {"read", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(read)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "json_numbers", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_json_numbers() { return PyModule_Create(&definition); }
