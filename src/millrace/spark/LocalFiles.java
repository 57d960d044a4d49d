package millrace;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.HashSet;
import java.util.Set;

import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, with permissions set by Java.
 *
 * Without Hadoop's native library, which PySpark does not have, Hadoop starts a `chmod` for each file and folder that it
 * makes: about ten for each micro-batch. The module `millrace.spark.home` compiles this with Janino, which has no
 * type arguments.
 */
public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
  }

  public static class Raw extends RawLocalFileSystem {
    /** The permissions by their bits, the lowest first. */
    private static final PosixFilePermission[] BITS = {
      PosixFilePermission.OTHERS_EXECUTE, PosixFilePermission.OTHERS_WRITE, PosixFilePermission.OTHERS_READ,
      PosixFilePermission.GROUP_EXECUTE, PosixFilePermission.GROUP_WRITE, PosixFilePermission.GROUP_READ,
      PosixFilePermission.OWNER_EXECUTE, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_READ
    };

    public void setPermission(Path path, FsPermission permission) throws IOException {
      int mode = permission.toShort();
      if (mode >> BITS.length != 0) { // Java cannot set the sticky bit
        super.setPermission(path, permission);
        return;
      }
      Set wanted = new HashSet();
      for (int bit = 0; bit < BITS.length; bit++) {
        if ((mode >> bit & 1) == 1) {
          wanted.add(BITS[bit]);
        }
      }
      Files.setPosixFilePermissions(pathToFile(path).toPath(), wanted);
    }
  }
}
