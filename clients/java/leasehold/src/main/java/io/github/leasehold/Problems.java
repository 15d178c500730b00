package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;

/** Turns problem documents (RFC 9457) into exceptions. */
final class Problems {
    private static final Set<String> INVALID = Set.of(
            "token_required", "malformed", "not_found", "method_not_allowed", "too_large", "not_json", "wrong_host", "invalid",
            "unsupported", "guarantee_too_weak", "limit", "stale_token");

    /** How much of a text of the server is shown. */
    private static final int TEXT_MAX = 1000;

    private Problems() {}

    static LeaseholdException read(Doc doc) {
        String kind = doc.text("kind");
        String message = message(doc, kind);
        Effect effect = doc.optText("effect").orElse("").equals("none") ? Effect.NONE : Effect.UNKNOWN;
        Duration retryAfter = doc.optMillis("retry_after_ms").orElse(Duration.ZERO);
        switch (kind) {
            case "contended":
                return new BusyException(
                        message,
                        doc.docs("holders").stream().map(Holder::read).toList(),
                        doc.optDoc("foreign").map(ForeignLock::read),
                        retryAfter,
                        doc.flag("paused"));
            case "lost":
                return new LostException(message, LossReason.of(doc.optText("why").orElse("")), null);
            case "mismatch":
                return new MismatchException(message, doc.optWhole("capacity"));
            case "not_that_one":
                return new HolderChangedException(message, doc.optToken("token"));
            case "unauthenticated", "denied":
                return new DeniedException(message, effect, null);
            case "corrupt":
                return new CorruptException(message, effect);
            default:
                return INVALID.contains(kind)
                        ? new InvalidException(message, effect)
                        : new UnavailableException(message, effect, retryAfter, null);
        }
    }

    private static String message(Doc doc, String kind) {
        String text = doc.optText("detail").or(() -> doc.optText("title")).orElse(kind);
        OptionalInt capacity = doc.optWhole("capacity");
        if (capacity.isPresent() && !text.contains(Integer.toString(capacity.getAsInt()))) {
            text = text + ": the capacity in use is " + capacity.getAsInt();
        }
        Optional<String> resource = doc.optText("resource");
        if (resource.isPresent() && !text.contains(resource.get())) {
            text = resource.get() + ": " + text;
        }
        return printable(text + doc.optText("hint").map(hint -> " (" + hint + ")").orElse(""));
    }

    /** A text of somebody else, as it may stand in one line of a log: without line breaks and escape sequences of terminals. */
    static String printable(String text) {
        int end = Math.min(text.length(), TEXT_MAX);
        StringBuilder shown = new StringBuilder(end + 1);
        text.substring(0, end).codePoints().forEach(c -> shown.appendCodePoint(isPrintable(c) ? c : ' '));
        return end < text.length() ? shown.append('…').toString() : shown.toString();
    }

    private static boolean isPrintable(int c) {
        int type = Character.getType(c);
        return type != Character.CONTROL
                && type != Character.FORMAT
                && type != Character.SURROGATE
                && type != Character.LINE_SEPARATOR
                && type != Character.PARAGRAPH_SEPARATOR;
    }
}
