package peers;

import java.util.concurrent.CompletionStage;

/** What the works need of a library. */
interface Lock {
    /** Acquires the lock and waits for it in the way of the library. Returns the release. */
    Release acquire(int task, String resource) throws Exception;

    /** Releases what was acquired. */
    interface Release {
        void run() throws Exception;
    }

    /** As acquire, without a thread for each waiter. */
    default CompletionStage<Void> acquireAsync(int task, String resource) {
        throw new UnsupportedOperationException("this lock has no waiters without threads");
    }

    default CompletionStage<Void> releaseAsync(int task, String resource) {
        throw new UnsupportedOperationException("this lock has no waiters without threads");
    }

    /** How many wait in line. */
    default int waiting(String resource) {
        throw new UnsupportedOperationException("this lock has no line");
    }
}
