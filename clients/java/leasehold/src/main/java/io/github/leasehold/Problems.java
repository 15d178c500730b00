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

    private Problems() {}

    static LeaseholdException read(Doc doc) {
        String kind = doc.text("kind");
        String message = message(doc, kind);
        Effect effect = doc.optText("effect").orElse("").equals("none") ? Effect.NONE : Effect.UNKNOWN;
        Duration retryAfter = doc.optMillis("retry_after_ms").orElse(Duration.ZERO);
        switch (kind) {
            case "contended":
                return new BusyException(
                        message, doc.docs("holders").stream().map(Holder::read).toList(), retryAfter, doc.flag("paused"));
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
        return text + doc.optText("hint").map(hint -> " (" + hint + ")").orElse("");
    }
}
