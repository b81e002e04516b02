import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog on the loopback: RestCatalog DATABASE WAREHOUSE PORT. */
public class RestCatalog {
  public static void main(String[] given) throws Exception {
    var catalog =
        CatalogUtil.buildIcebergCatalog(
            "rest",
            Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", "jdbc:sqlite:" + given[0],
                "warehouse", given[1],
                "clients", "1", // a second connection would find SQLite's file locked
                "jdbc.schema-version", "V1"),
            new Configuration());
    var handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(
        new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    var server = new Server();
    var connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    connector.setPort(Integer.parseInt(given[2]));
    server.addConnector(connector);
    server.setHandler(handler);
    server.start();
    System.out.println(connector.getLocalPort());
  }
}
