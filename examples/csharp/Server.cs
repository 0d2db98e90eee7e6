using System;
using System.IO;
using System.Net;
using System.Text;
using System.Threading.Tasks;
using Quire;

/// <summary>
/// Answers questions about one document over HTTP. Arguments: a model, a text file, and a prefix such as
/// http://127.0.0.1:8080/. The body of a POST is a question; that of the response is the answer, sent as it comes:
/// curl -N --data "Who is it about?" http://127.0.0.1:8080/. Requests are answered at once, each in a fork. Ctrl-C ends
/// the server, and with it the answers.
/// </summary>
internal static class Server
{
    private const long MostBytes = 64 * 1024; // of a question

    private static int Main(string[] arguments)
    {
        if (arguments.Length != 3)
        {
            Console.Error.WriteLine("usage: Server MODEL DOCUMENT PREFIX");
            return 2;
        }
        using (var listener = new HttpListener())
        using (var runtime = new Runtime())
        using (Model model = runtime.LoadModel(arguments[0]))
        using (Session document = model.CreateSession("dca"))
        {
            document.Feed(File.ReadAllText(arguments[1]));
            document.Prefill();
            listener.Prefixes.Add(arguments[2]);
            listener.Start();
            Console.CancelKeyPress += (sender, pressed) =>
            {
                pressed.Cancel = true;
                listener.Stop();
            };
            Console.WriteLine("listening at " + arguments[2]);
            while (Next(listener) is HttpListenerContext context)
            {
                // This thread alone uses the document: it makes the forks, and each goes on by itself.
                Session fork = document.Fork();
                Task.Run(() => Serve(context, fork));
            }
            return 0;
        }
    }

    /// <summary>The next request; null when the listener was stopped.</summary>
    private static HttpListenerContext Next(HttpListener listener)
    {
        try
        {
            return listener.GetContext();
        }
        catch (Exception) when (!listener.IsListening)
        {
            return null;
        }
    }

    private static void Serve(HttpListenerContext context, Session session)
    {
        using (session)
        using (HttpListenerResponse response = context.Response)
        {
            try
            {
                Answer(context.Request, response, session);
            }
            catch (QuireException exception)
            {
                // The status cannot be changed once a part of the answer was sent.
                Console.Error.WriteLine(exception.Message);
                response.Abort();
            }
            catch (Exception exception) when (exception is IOException || exception is HttpListenerException)
            {
                Console.Error.WriteLine("the client left: " + exception.Message);
            }
        }
    }

    private static void Answer(HttpListenerRequest request, HttpListenerResponse response, Session session)
    {
        if (request.HttpMethod != "POST") response.StatusCode = (int)HttpStatusCode.MethodNotAllowed;
        else if (request.ContentLength64 < 0) response.StatusCode = (int)HttpStatusCode.LengthRequired;
        else if (request.ContentLength64 > MostBytes) response.StatusCode = (int)HttpStatusCode.RequestEntityTooLarge;
        if (response.StatusCode != (int)HttpStatusCode.OK) return;
        using (var reader = new StreamReader(request.InputStream, Encoding.UTF8))
            session.Feed(" " + reader.ReadToEnd());
        response.ContentType = "text/plain; charset=utf-8";
        response.SendChunked = true;
        foreach (string piece in session.Generate(new StreamOptions { MaxTokens = 200 }))
        {
            byte[] bytes = Encoding.UTF8.GetBytes(piece);
            response.OutputStream.Write(bytes, 0, bytes.Length);
            response.OutputStream.Flush();
        }
    }
}
