package io.github.leasehold;

import java.time.Duration;
import java.util.Optional;

/**
 * A claim in the queue of a resource.
 *
 * @param host the host, as the process says
 * @param pid the process id there
 * @param label the purpose, as the process says
 * @param subject who the server took it for, by its token or certificate
 * @param weight the part of the capacity that it wants
 * @param waited the time since it joined the queue
 * @param silent whether it could have been granted and did not answer
 */
public record Waiter(
        String host, int pid, String label, Optional<String> subject, int weight, Duration waited, boolean silent) {

    static Waiter read(Doc doc) {
        Doc who = doc.optDoc("holder").orElseThrow(() -> new Doc.DocException("a waiter is missing"));
        return new Waiter(
                who.text("host"),
                who.whole("pid"),
                who.optText("label").orElse(""),
                who.optText("subject"),
                doc.whole("weight"),
                doc.millis("waited_ms"),
                doc.flag("silent"));
    }
}
