package io.github.leasehold;

import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;

/** The Java code of a page of the documentation, compiled. */
public final class Documentation {
    private static final Pattern BLOCK = Pattern.compile("^```java\n(.*?)^```$", Pattern.DOTALL | Pattern.MULTILINE);
    private static final Pattern CLASS = Pattern.compile("^public (?:final )?class (\\w+)", Pattern.MULTILINE);
    /** What stands around code that is not a class. */
    private static final String AROUND = """
            import io.github.leasehold.*;
            import java.sql.*;
            import java.time.Duration;
            import java.util.*;
            import java.util.concurrent.*;
            public class %s {
                public LeaseholdClient client;
                public javax.sql.DataSource database;
                long export() { return 1; }
                long export(Object proof) { return 1; }
                void route(Optional<String> address) {}
                public void run() throws Exception {
            %s
                }
            }
            """;

    private Documentation() {}

    /** Compiles all blocks of a page, and gives a loader of their classes. */
    public static ClassLoader compile(Path page, Path folder) throws IOException {
        List<String> arguments = new ArrayList<>(
                List.of("-proc:none", "-d", folder.toString(), "-cp", System.getProperty("java.class.path")));
        Matcher blocks = BLOCK.matcher(Files.readString(page));
        for (int count = 1; blocks.find(); count++) {
            Matcher named = CLASS.matcher(blocks.group(1));
            boolean isClass = named.find();
            String name = isClass ? named.group(1) : "Block" + count;
            Path file = folder.resolve(name + ".java");
            Files.writeString(file, isClass ? blocks.group(1) : String.format(AROUND, name, blocks.group(1)));
            arguments.add(file.toString());
        }
        int failed = ToolProvider.getSystemJavaCompiler().run(null, null, null, arguments.toArray(String[]::new));
        if (failed != 0) {
            throw new AssertionError(page + " does not compile");
        }
        return new URLClassLoader(new URL[] {folder.toUri().toURL()}, Documentation.class.getClassLoader());
    }
}
