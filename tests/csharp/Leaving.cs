using System;

namespace Quire.Tests
{
    /// <summary>
    /// A program that ends in the middle: with work under way, handles open, and a log function that threads of the
    /// library call. Such an end must be quiet.
    /// </summary>
    internal static class Leaving
    {
        internal static int Run()
        {
            var runtime = new Runtime(new RuntimeOptions
            {
                ThreadCount = 4,
                Log = (level, message) => GC.KeepAlive(message),
                LogLevel = LogLevel.Debug
            });
            Session session = runtime.LoadModel(Shared.TinyModel).CreateSession(new SessionOptions
            {
                Strategy = "dca",
                PrefillBlock = 16
            });
            session.FeedTokens(Shared.Ids(50000));
            EventStream stream = session.Open(new StreamOptions { MaxTokens = 100 });
            stream.Next();
            Console.WriteLine("leaving");
            return 0;
        }
    }
}
