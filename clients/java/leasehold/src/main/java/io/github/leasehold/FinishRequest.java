package io.github.leasehold;

import java.time.Duration;

/**
 * An operator asks a holder to finish.
 *
 * @param within how much time the holder has
 * @param by the operator
 * @param why the reason
 */
public record FinishRequest(Duration within, String by, String why) {
    static FinishRequest read(Doc doc) {
        return new FinishRequest(doc.millis("within_ms"), doc.text("by"), doc.text("why"));
    }
}
