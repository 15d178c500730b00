package io.github.leasehold;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads and writes JSON (RFC 8259).
 *
 * <p>Objects are maps, arrays are lists; whole numbers are {@link Long}, others {@link Double}. Reading is strict and bounded: in depth
 * here, in length by the transport. The last of several fields with one name counts.
 */
final class Json {
    private static final int DEPTH_MAX = 64;

    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /** What cannot be read. */
    static final class JsonException extends Exception {
        private static final long serialVersionUID = 1L;

        JsonException(String message) {
            super(message);
        }
    }

    static Object read(byte[] utf8) throws JsonException {
        try {
            return read(StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8)).toString());
        } catch (CharacterCodingException error) {
            throw new JsonException("it is not UTF-8");
        }
    }

    static Object read(String text) throws JsonException {
        Json json = new Json(text);
        Object value = json.value();
        json.skipSpace();
        if (json.at < text.length()) {
            throw json.wrong("the end");
        }
        return value;
    }

    private JsonException wrong(String wanted) {
        return new JsonException("expected " + wanted + " at offset " + at);
    }

    private void skipSpace() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    /** The next character, or 0 at the end. */
    private char peek() {
        return at < text.length() ? text.charAt(at) : 0;
    }

    private boolean take(char wanted) {
        if (peek() == wanted && at < text.length()) {
            at++;
            return true;
        }
        return false;
    }

    private Object value() throws JsonException {
        skipSpace();
        switch (peek()) {
            case '{':
                return object();
            case '[':
                return array();
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Object word(String word, Object value) throws JsonException {
        if (!text.startsWith(word, at)) {
            throw wrong(word);
        }
        at += word.length();
        return value;
    }

    private void enter() throws JsonException {
        at++;
        if (++depth > DEPTH_MAX) {
            throw new JsonException("it is nested more than " + DEPTH_MAX + " deep");
        }
    }

    private Map<String, Object> object() throws JsonException {
        enter();
        Map<String, Object> fields = new LinkedHashMap<>();
        skipSpace();
        if (!take('}')) {
            do {
                skipSpace();
                if (peek() != '"') {
                    throw wrong("the name of a field");
                }
                String name = string();
                skipSpace();
                if (!take(':')) {
                    throw wrong("':'");
                }
                fields.put(name, value());
                skipSpace();
            } while (take(','));
            if (!take('}')) {
                throw wrong("'}'");
            }
        }
        depth--;
        return fields;
    }

    private List<Object> array() throws JsonException {
        enter();
        List<Object> items = new ArrayList<>();
        skipSpace();
        if (!take(']')) {
            do {
                items.add(value());
                skipSpace();
            } while (take(','));
            if (!take(']')) {
                throw wrong("']'");
            }
        }
        depth--;
        return items;
    }

    private String string() throws JsonException {
        at++;
        StringBuilder out = new StringBuilder();
        while (true) {
            if (at >= text.length()) {
                throw wrong("'\"'");
            }
            char c = text.charAt(at++);
            if (c == '"') {
                return out.toString();
            }
            if (c < ' ') {
                throw wrong("no control character");
            }
            out.append(c == '\\' ? escaped() : c);
        }
    }

    private char escaped() throws JsonException {
        char c = peek();
        at++;
        switch (c) {
            case '"', '\\', '/':
                return c;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                return unicode();
            default:
                throw wrong("an escape");
        }
    }

    private char unicode() throws JsonException {
        int code = 0;
        for (int i = 0; i < 4; i++) {
            int digit = peek() < 128 ? Character.digit(peek(), 16) : -1;
            if (digit < 0) {
                throw wrong("four hex digits");
            }
            code = code * 16 + digit;
            at++;
        }
        return (char) code;
    }

    private Object number() throws JsonException {
        int start = at;
        take('-');
        boolean leadingZero = peek() == '0';
        int whole = digits();
        if (whole == 0 || leadingZero && whole > 1) {
            throw wrong("a value");
        }
        boolean isWhole = true;
        if (take('.')) {
            isWhole = false;
            if (digits() == 0) {
                throw wrong("a digit");
            }
        }
        if (take('e') || take('E')) {
            isWhole = false;
            if (!take('+')) {
                take('-');
            }
            if (digits() == 0) {
                throw wrong("a digit");
            }
        }
        String digits = text.substring(start, at);
        // 18 digits fit into a long.
        return isWhole && digits.length() <= 18 ? (Object) Long.valueOf(digits) : (Object) Double.valueOf(digits);
    }

    private int digits() {
        int start = at;
        while (peek() >= '0' && peek() <= '9') {
            at++;
        }
        return at - start;
    }

    /** Writes maps, iterables, strings, numbers, booleans and null. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> fields) {
            out.append('{');
            Iterator<? extends Map.Entry<?, ?>> entries = fields.entrySet().iterator();
            while (entries.hasNext()) {
                Map.Entry<?, ?> entry = entries.next();
                out.append('"').append(escape(entry.getKey().toString())).append("\":");
                write(entry.getValue(), out);
                out.append(entries.hasNext() ? "," : "");
            }
            out.append('}');
        } else if (value instanceof Iterable<?> items) {
            out.append('[');
            Iterator<?> all = items.iterator();
            while (all.hasNext()) {
                write(all.next(), out);
                out.append(all.hasNext() ? "," : "");
            }
            out.append(']');
        } else if (value == null || value instanceof Boolean || value instanceof Long || value instanceof Integer) {
            out.append(value);
        } else if (value instanceof CharSequence text) {
            out.append('"').append(escape(text.toString())).append('"');
        } else {
            throw new IllegalArgumentException("this is not JSON: " + value.getClass());
        }
    }

    /** The text as it stands between quotes. */
    static String escape(String text) {
        StringBuilder out = new StringBuilder(text.length() + 8);
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c == 127) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.toString();
    }
}
