import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.api.ThriftHiveMetastore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** Hive's own metastore on the loopback: Metastore DATABASE WAREHOUSE PORT. */
public class Metastore {
  public static void main(String[] given) throws Exception {
    var settings = new HiveConf();
    settings.set("javax.jdo.option.ConnectionURL", "jdbc:derby:" + given[0] + ";create=true");
    settings.set("datanucleus.connectionPoolingType", "HikariCP"); // the one that Spark brings
    settings.set("datanucleus.schema.autoCreateAll", "true");
    settings.set("hive.metastore.schema.verification", "false");
    settings.set("hive.metastore.warehouse.dir", given[1]);
    settings.set("hive.txn.timeout", "60s"); // how long the lock of whoever was killed stays
    var isNew = !Files.exists(Path.of(given[0]));
    var handler = HiveMetaStore.newRetryingHMSHandler("metastore", settings, true);
    TxnDbUtil.setConfValues(settings);
    if (isNew) {
      TxnDbUtil.prepDb(settings); // the tables of locks, which are not made with the others
    }
    var locks = TxnUtils.getTxnStore(settings);
    Executors.newSingleThreadScheduledExecutor()
        .scheduleWithFixedDelay(locks::performTimeOuts, 1, 1, TimeUnit.SECONDS);
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", Integer.parseInt(given[2])));
    var processor = new ThriftHiveMetastore.Processor<>(handler);
    System.out.println(socket.getServerSocket().getLocalPort());
    new TThreadPoolServer(new TThreadPoolServer.Args(socket).processor(processor)).serve();
  }
}
