package io.github.leasehold;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.regex.Pattern;

/** A JSON object of an answer, whose fields are read by type. A field that is null counts as absent; unknown fields are ignored. */
final class Doc {
    private static final Pattern TOKEN = Pattern.compile("[1-9][0-9]{0,15}");

    private final Map<?, ?> fields;

    private Doc(Map<?, ?> fields) {
        this.fields = fields;
    }

    /** An answer that is not what it should be. */
    static final class DocException extends RuntimeException {
        private static final long serialVersionUID = 1L;

        DocException(String message) {
            super(message);
        }
    }

    static Doc read(byte[] body) {
        try {
            if (Json.read(body) instanceof Map<?, ?> fields) {
                return new Doc(fields);
            }
        } catch (Json.JsonException error) {
            throw new DocException(error.getMessage());
        }
        throw new DocException("it is not an object");
    }

    private <T> Optional<T> field(String name, Class<T> type) {
        Object value = fields.get(name);
        if (value != null && !type.isInstance(value)) {
            throw new DocException("the field " + name + " is not a " + type.getSimpleName());
        }
        return Optional.ofNullable(value).map(type::cast);
    }

    private static DocException missing(String name) {
        return new DocException("the field " + name + " is missing");
    }

    Optional<String> optText(String name) {
        return field(name, String.class);
    }

    String text(String name) {
        return optText(name).orElseThrow(() -> missing(name));
    }

    boolean flag(String name) {
        return field(name, Boolean.class).orElse(false);
    }

    OptionalInt optWhole(String name) {
        Optional<Long> value = field(name, Long.class);
        if (value.isEmpty()) {
            return OptionalInt.empty();
        }
        // Counters of a server may be larger; what they count is then only shown.
        return OptionalInt.of((int) Math.max(0, Math.min(value.get(), Integer.MAX_VALUE)));
    }

    int whole(String name) {
        return optWhole(name).orElseThrow(() -> missing(name));
    }

    Optional<Duration> optMillis(String name) {
        Optional<Long> value = field(name, Long.class);
        if (value.isPresent() && value.get() < 0) {
            throw new DocException("the field " + name + " is negative");
        }
        return value.map(Doc::bounded);
    }

    Duration millis(String name) {
        return optMillis(name).orElseThrow(() -> missing(name));
    }

    /** No time here is longer than a century, so nanoseconds fit into a long. */
    private static Duration bounded(long millis) {
        return Duration.ofMillis(Math.min(millis, 100L * 365 * 86_400_000));
    }

    OptionalLong optToken(String name) {
        Optional<String> value = optText(name);
        if (value.isEmpty()) {
            return OptionalLong.empty();
        }
        if (!TOKEN.matcher(value.get()).matches()) {
            throw new DocException("the field " + name + " is not a token");
        }
        return OptionalLong.of(Long.parseLong(value.get()));
    }

    Optional<Doc> optDoc(String name) {
        return field(name, Map.class).map(map -> new Doc(map));
    }

    List<Doc> docs(String name) {
        List<Doc> docs = new ArrayList<>();
        for (Object item : field(name, List.class).orElse(List.of())) {
            if (!(item instanceof Map<?, ?> map)) {
                throw new DocException("the field " + name + " has an item that is not an object");
            }
            docs.add(new Doc(map));
        }
        return docs;
    }

    /** The note of a holder. */
    Optional<byte[]> note() {
        Optional<String> text = optText("note");
        if (text.isPresent()) {
            return text.map(note -> note.getBytes(StandardCharsets.UTF_8));
        }
        try {
            return optText("note_base64").map(note -> Base64.getDecoder().decode(note));
        } catch (IllegalArgumentException error) {
            throw new DocException("the field note_base64 is not Base64");
        }
    }
}
