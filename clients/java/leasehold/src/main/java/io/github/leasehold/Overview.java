package io.github.leasehold;

import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * All resources in numbers, and the first of them, as the server has sampled them.
 *
 * @param sampledAgo the age of the sample
 * @param held resources that are held
 * @param waiting claims that wait
 * @param stuck resources for which a claim has waited too long
 * @param paused resources that an operator has paused
 * @param matched how many resources match
 * @param items the first of them
 * @param next where the next page begins, if there is one
 */
public record Overview(
        Duration sampledAgo, int held, int waiting, int stuck, int paused, int matched, List<Item> items, Optional<String> next) {

    /**
     * A resource in the overview.
     *
     * @param name its name, as people write it
     * @param key its key
     * @param holderCount the number of holders
     * @param queueLength the number of claims that wait
     * @param oldestWait how long the first of them has waited
     * @param oldestHold how long the oldest holder has held it
     * @param stuck whether a claim has waited too long
     */
    public record Item(
            String name,
            String key,
            int holderCount,
            int queueLength,
            Optional<Duration> oldestWait,
            Optional<Duration> oldestHold,
            boolean stuck) {

        static Item read(Doc doc) {
            return new Item(
                    doc.text("resource"),
                    doc.text("key"),
                    doc.whole("holder_count"),
                    doc.whole("queue_length"),
                    doc.optMillis("oldest_wait_ms"),
                    doc.optMillis("oldest_hold_ms"),
                    doc.flag("stuck"));
        }
    }

    static Overview read(Doc doc) {
        return new Overview(
                doc.millis("sampled_ms_ago"),
                doc.whole("held"),
                doc.whole("waiting"),
                doc.whole("stuck"),
                doc.whole("paused"),
                doc.whole("matched"),
                doc.docs("items").stream().map(Item::read).toList(),
                doc.optText("next"));
    }
}
